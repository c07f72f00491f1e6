"""The tree of groups: from the scopes in the names of nodes, and in large groups from repeated blocks and segments."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlist.show.scope_tree import MAX_MEMBERS, Group, GroupStep, build_tree, name_steps, order_nodes, split_scopes


def outline(group: Group) -> list[object]:
    """Return the members of a group: numbers of nodes, and (label, members) of groups."""
    return [(m.label, outline(m)) if isinstance(m, Group) else m for m in group.members]


def tree_of(*names: str) -> Group:
    return build_tree([name_steps(name) for name in names])


def chain_of(op_types: list[str]) -> Group:
    """Return the tree of nodes without scopes: each reads the one before it."""
    return build_tree(
        [[] for _ in op_types], op_types, [[node - 1] if node else [] for node in range(len(op_types))], [0]
    )


def labels(group: Group) -> list[str | int]:
    return [member.label if isinstance(member, Group) else member for member in group.members]


def all_groups(group: Group) -> Iterator[Group]:
    yield group
    for member in group.members:
        if isinstance(member, Group):
            yield from all_groups(member)


def nodes_under(group: Group) -> list[int]:
    return [n for m in group.members for n in (nodes_under(m) if isinstance(m, Group) else [m])]


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


# --- large groups ---

LAYER = ["MatMul", "Add", "Softmax", "MatMul", "Add", "Relu", "MatMul", "Add"]
STEM, HEAD = ["Gather", "Add", "LayerNormalization"], ["ReduceMean", "Gemm", "Tanh"]


def test_a_group_that_is_not_large_stays_as_it_is() -> None:
    assert labels(chain_of(LAYER * 3)) == list(range(MAX_MEMBERS))


def test_repeated_blocks_are_one_group_called_after_their_operators() -> None:
    tree = chain_of([*STEM, *LAYER * 12, *HEAD])
    assert labels(tree) == ["Gather Add LayerNormalization", "12 x MatMul Add Softmax", "ReduceMean Gemm Tanh"]
    blocks = tree.members[1]
    assert isinstance(blocks, Group)
    assert labels(blocks) == [f"{number} of 12" for number in range(1, 13)]
    assert outline(blocks)[2][1] == list(range(19, 27))  # type: ignore[index]


def test_stages_with_other_first_blocks_are_found() -> None:
    """The stages of a ResNet: three, four and six blocks, of which the first has a branch more."""
    block = ["Conv", "BatchNormalization", "Relu", "Conv", "BatchNormalization", "Add", "Relu"]
    first = ["Conv", "BatchNormalization", *block]
    tree = chain_of(["Conv", "MaxPool", *first, *block * 3, *first, *block * 4, *first, *block * 6, "Gemm"])
    repeats = [label for label in labels(tree) if isinstance(label, str) and " x " in label]
    assert [label.split()[0] for label in repeats] == ["4", "5", "7"]  # the first block ends with a whole block


def test_a_repeat_begins_where_few_tensors_cross() -> None:
    """Each block keeps its input for its last node, so only its input crosses to the next block."""
    op_types, producers = ["Mul", "Add"], [[], [0]]
    for _ in range(10):
        start = len(op_types)
        op_types += ["Relu", "Mul", "Mul", "Add"]
        producers += [[start - 1], [start], [start + 1], [start + 2, start - 1]]
    tree = build_tree([[] for _ in op_types], op_types, producers, [0])
    (repeat,) = [member for member in tree.members if isinstance(member, Group)]
    assert outline(repeat)[0] == ("1 of 10", [2, 3, 4, 5])


def test_segments_are_cut_where_few_tensors_cross() -> None:
    """Three units of twelve nodes without repeats: all nodes of a unit read its first node."""
    names = [f"Op{k}" for k in range(36)]
    producers = [[k - 1] if k else [] for k in range(36)]
    for start in (0, 12, 24):
        for node in range(start + 3, start + 12):
            producers[node].append(start)
    tree = build_tree([[] for _ in names], names, producers, [0])
    firsts = [nodes_under(member)[0] for member in tree.members if isinstance(member, Group)]
    assert {13, 24} <= set(firsts)  # one tensor crosses before 12, 13 and 24, and two elsewhere


def test_constants_come_before_their_first_reader_and_break_no_block() -> None:
    """The first block computes a constant that all blocks read."""
    op_types = ["Shape", "Unsqueeze", "Gather", *["MatMul", "Add", "Relu"] * 12]
    producers = [[], [0], [], *[[k - 1, *([1] if k % 3 == 0 else [])] for k in range(3, 39)]]
    tree = build_tree([[] for _ in op_types], op_types, producers, [2])
    assert [label for label in labels(tree) if isinstance(label, str)] == ["12 x MatMul Add Relu"]
    assert outline(tree)[1][1][0] == ("1 of 12", [0, 1, 3, 4, 5])  # type: ignore[index]


def test_the_layers_of_a_scope_are_named_from_first_to_last() -> None:
    names = [f"/m/layers.{layer}/{op}" for layer in range(30) for op in ("a", "b")]
    tree = tree_of(*names)
    (scope,) = tree.members
    assert isinstance(scope, Group)
    assert labels(scope) == ["layers.0 to layers.29"]
    inner = scope.members[0]
    assert isinstance(inner, Group)
    assert labels(inner) == ["1 to 15 of 30", "16 to 30 of 30"]


def test_a_large_scope_stays_a_member_of_a_divided_group() -> None:
    names = [*[f"/m/n{k}" for k in range(40)], *[f"/m/encoder/{k}" for k in range(20)], "/m/last"]
    op_types = [f"Op{k % 7}{k % 5}" for k in range(len(names))]
    tree = build_tree([name_steps(name) for name in names], op_types)
    scope = next(member for member in tree.members if isinstance(member, Group))
    assert "encoder" in labels(scope)


def test_the_nodes_of_a_body_come_before_the_node_that_runs_it() -> None:
    # 0 → 1 (If) → 2, with the body 3 → 4, of which 3 reads 0. Node 5 is a Loop and the producer in its body, 6.
    assert order_nodes([[], [0, 4], [1], [0], [3], [2, 6], [5]], [0]) == [0, 3, 4, 1, 2, 6, 5]


def test_inputs_and_outputs_stay_outside_of_parts() -> None:
    inputs = [[GroupStep("terminals", "inputs")]] * 3
    outputs = [[GroupStep("terminals", "outputs")]] * 60
    tree = build_tree([*[[] for _ in range(200)], *inputs, *outputs], ["Relu"] * 263)
    assert labels(tree) == ["200 x Relu", 200, 201, 202, "outputs"]
    assert labels(tree.members[-1]) == ["1 to 20 of 60", "21 to 40 of 60", "41 to 60 of 60"]  # type: ignore[arg-type]


def check_sizes(tree: Group, count: int) -> None:
    assert sorted(nodes_under(tree)) == list(range(count))
    assert all(len(group.members) <= MAX_MEMBERS for group in all_groups(tree))


OPERATORS = st.sampled_from(["MatMul", "Add", "Relu", "Shape"])


@given(st.lists(st.tuples(st.lists(OPERATORS, min_size=1, max_size=6), st.integers(1, 40)), max_size=12), st.data())
def test_each_node_is_in_the_tree_once_and_no_group_is_large(
    runs: list[tuple[list[str], int]], data: st.DataObject
) -> None:
    op_types = [op_type for block, count in runs for op_type in block * count]
    distances = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=20))
    producers = [
        sorted({max(0, node - 1), max(0, node - distances[node % len(distances)])}) if node else []
        for node in range(len(op_types))
    ]
    inputs = [0] if op_types else []
    tree = build_tree([[] for _ in op_types], op_types, producers, inputs)
    check_sizes(tree, len(op_types))
    assert outline(tree) == outline(build_tree([[] for _ in op_types], op_types, producers, inputs))


@given(st.lists(st.text(st.sampled_from("ab/"), max_size=12), max_size=200))
def test_names_with_scopes_are_in_the_tree_once_and_no_group_is_large(names: list[str]) -> None:
    check_sizes(tree_of(*names), len(names))


def test_the_time_grows_with_the_number_of_nodes() -> None:
    """Twenty times as many nodes take at most forty times as long: of three tries, one has to."""

    def seconds(layers: int) -> float:
        op_types = [*STEM, *LAYER * layers, *HEAD]
        start = time.process_time()
        check_sizes(chain_of(op_types), len(op_types))
        return time.process_time() - start

    assert any(seconds(4000) < 40 * seconds(200) for _ in range(3))
