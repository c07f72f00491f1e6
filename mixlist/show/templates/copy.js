"use strict";
// Give each command a button that copies it. A page without scripts has no such button. Where the browser refuses, the
// command is selected.
for (const command of document.querySelectorAll("#next pre")) {
  const button = document.createElement("button"), text = command.textContent;
  Object.assign(button, { type: "button", className: "copy", textContent: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(command);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  command.after(button);
}
