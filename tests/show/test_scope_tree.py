"""The tree of groups, from the scopes in the names of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlist.show.scope_tree import MAX_MEMBERS, Group, GroupStep, build_tree, name_steps, split_scopes


def outline(group: Group) -> list[object]:
    """Return the members of a group: numbers of nodes, and (label, members) of groups."""
    return [(m.label, outline(m)) if isinstance(m, Group) else m for m in group.members]


def tree_of(*names: str) -> Group:
    return build_tree(name_steps(name) for name in names)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("/model/layers.0/attn/MatMul", ["/model/", "layers.0/", "attn/"]),
        ("model/MatMul", ["model/"]),
        ("layer.0.attn.MatMul", ["layer.0.", "attn."]),
        ("Conv_12", []),
        ("/MatMul", []),
        ("a/b/", ["a/"]),
        ("p2o.Conv.7", ["p2o."]),
        ("Add_1.0", []),
        ("", []),
        ("/", []),
        ("...", []),
    ],
)
def test_the_scopes_of_a_name(name: str, parts: list[str]) -> None:
    assert split_scopes(name) == parts


@given(st.text(st.sampled_from("ab0./"), max_size=40))
def test_a_name_starts_with_its_scopes_and_keeps_a_rest(name: str) -> None:
    joined = "".join(split_scopes(name))
    assert name.startswith(joined)
    assert not name or len(joined) < len(name)


def test_nodes_of_one_scope_are_one_group_in_topological_order() -> None:
    tree = tree_of("/m/a/X", "/m/b/Y", "/m/a/Z", "/m/b/W", "Out")
    assert outline(tree) == [("m", [("a", [0, 2]), ("b", [1, 3])]), 4]


def test_a_scope_with_one_member_is_no_group() -> None:
    assert outline(tree_of("/m/a/X", "/m/a/Y")) == [("m/a", [0, 1])]
    assert outline(tree_of("/m/a/X", "/n/Y", "/n/Z")) == [0, ("n", [1, 2])]


def test_a_body_with_one_node_stays_a_group() -> None:
    assert outline(build_tree([[GroupStep("body", "If_0: then_branch")], []])) == [("If_0: then_branch", [0]), 1]


def test_a_large_group_is_divided_into_runs() -> None:
    assert len(tree_of(*[f"n{k}" for k in range(MAX_MEMBERS)]).members) == MAX_MEMBERS
    runs = tree_of(*[f"n{k}" for k in range(250)]).members
    labels = [run.label for run in runs if isinstance(run, Group)]
    assert labels == ["nodes 1 to 100", "nodes 101 to 200", "nodes 201 to 250"]


def test_many_runs_are_divided_again() -> None:
    tree = tree_of(*[f"n{k}" for k in range(40_000)])
    labels = [group.label for group in tree.members if isinstance(group, Group)]
    assert labels == ["nodes 1 to 10000", "nodes 10001 to 20000", "nodes 20001 to 30000", "nodes 30001 to 40000"]
    assert outline(tree)[3][1][99] == ("nodes 39901 to 40000", list(range(39_900, 40_000)))  # type: ignore[index]


@given(st.lists(st.text(st.sampled_from("ab/"), max_size=12), max_size=60))
def test_each_node_is_in_the_tree_once(names: list[str]) -> None:
    def nodes(group: Group) -> list[int]:
        return [n for m in group.members for n in (nodes(m) if isinstance(m, Group) else [m])]

    assert sorted(nodes(tree_of(*names))) == list(range(len(names)))


def test_inputs_and_outputs_stay_outside_of_runs() -> None:
    inputs = [[GroupStep("terminals", "inputs")]] * 3
    outputs = [[GroupStep("terminals", "outputs")]] * 20
    members = outline(build_tree([*[[] for _ in range(200)], *inputs, *outputs]))
    assert [m[0] if isinstance(m, tuple) else m for m in members] == [
        "nodes 1 to 100",
        "nodes 101 to 200",
        200,
        201,
        202,
        "outputs",
    ]
