"""Code that tests share: builders of models, random graphs, references of the rules, and checks of the promises."""
