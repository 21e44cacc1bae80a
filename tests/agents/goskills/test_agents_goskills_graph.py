"""Names in texts, links and their kinds, the typed graph, groups with roles, and the graph of groups."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.goskills import names
from steelyard.agents.goskills.graph import Edge, SkillGraph, build_skill_graph
from steelyard.agents.goskills.groups import Group, GroupRows, Member, build_group_graph, build_skill_groups, role_of
from steelyard.agents.goskills.library import SkillLibrary
from steelyard.agents.goskills.linker import LanguageModelLinker, Link, rule_links, schema_links
from steelyard.agents.goskills.names import NameIndex
from steelyard.agents.goskills.profile import profile
from steelyard.agents.goskills.skill import Skill
from steelyard.agents.goskills.vectors import CardVectors
from steelyard.errors import InputError


def make(**bodies):
    return [Skill(name.replace("_", "-"), "Does things.", body) for name, body in sorted(bodies.items())]


def links_of(**bodies):
    skills = make(**bodies)
    return [(link.source, link.target, link.kind) for link in rule_links(skills, 8, NameIndex(skills))]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("For standard work rather than this, see two-b.", "alternative"),
        ("two-b is a simpler choice", "alternative"),
        ("Use `two-b` for standard work", "alternative"),
        ("This requires two-b.", "dependency"),
        ("Run two-b first", "dependency"),
        ("It depends on two-b", "dependency"),
        ("takes the output of two-b", "dependency"),
        ("Combine with two-b and plot", "workflow"),
        ("see also two-b", "workflow"),
    ],
)
def test_kinds_by_cue_words(text, kind):
    assert links_of(one_a=text, two_b="x") == [("one-a", "two-b", kind)]


def test_cues_far_away_do_not_count_and_the_commonest_kind_wins():
    assert links_of(one_a="requires water. " + "x " * 60 + "two-b", two_b="x")[0][2] == "workflow"
    far = " x" * 60
    many = f"requires two-b.{far} two-b{far} two-b"
    assert links_of(one_a=many, two_b="x")[0][2] == "workflow"
    tie = f"requires two-b.{far} two-b"
    assert links_of(one_a=tie, two_b="x")[0][2] == "dependency"
    late = f"two-b{far}" * 6 + f"requires two-b.{far}" * 9  # only the first six count
    assert links_of(one_a=late, two_b="x")[0][2] == "workflow"


def test_names_without_a_hyphen_need_a_mark():
    for text in ("`rdkit` is good", "use rdkit now", "the rdkit skill", "skill: rdkit", "Using `rdkit`"):
        assert links_of(one=text, rdkit="x") == [("one", "rdkit", "workflow")], text
    for text in ("rdkit is good", "we misuse rdkits", "rdkit_two skill"):
        assert links_of(one=text, rdkit="x") == [], text
    assert links_of(one="use api now", api="x") == []  # three letters
    assert links_of(one="use one and `one`") == []  # itself
    assert links_of(one="Use `pdf-parts-two` and pdf_parts.", pdf_parts="x", pdf_parts_two="x") == [
        ("one", "pdf-parts", "workflow"), ("one", "pdf-parts-two", "workflow"),
    ]  # fmt: skip


def test_link_top_k_keeps_the_most_mentioned_then_by_name():
    skills = make(one="bb-b aa-a cc-c cc-c", aa_a="x", bb_b="x", cc_c="x")
    targets = [link.target for link in rule_links(skills, 2, NameIndex(skills))]
    assert targets == ["cc-c", "aa-a"]
    assert rule_links(skills, 0, NameIndex(skills)) == []


def test_skills_that_share_a_name_are_all_meant():
    skills = [Skill("one", "d", "see two-b"), Skill("x/two-b", "d"), Skill("y/two-b", "d")]
    names = NameIndex(skills)
    assert names.literal("use two-b") == [1, 2]
    assert [link.target for link in rule_links(skills, 8, names)] == ["x/two-b", "y/two-b"]


def test_literal_names_of_a_task():
    skills = make(rdkit="x", pdf="x", transformers="x", scientific_visualization="x", a_b="x", scan="x")
    names = NameIndex(skills)

    def literal(text):
        return [skills[place].name for place in names.literal(text)]

    assert literal("Load with RDKit") == ["rdkit"]
    assert literal("a Scientific Visualization of rdkit") == ["scientific-visualization", "rdkit"]
    assert literal("a b is short, a-b is joined") == ["a-b"]
    assert literal("write a pdf, train transformers, scan it") == []
    assert literal("the pdf skill, `transformers`, use scan") == ["pdf", "transformers", "scan"]


def test_a_word_of_many_texts_is_generic():
    skills = [Skill("modal", "d"), *(Skill(f"s-{number}", "A modal window.") for number in range(4))]
    assert NameIndex(skills).generic == {0}
    assert NameIndex(skills[:3]).generic == frozenset()


NAMES = ("alpha", "beta-two", "gamma-x-y", "de", "alpha-two", "beta")
names_ = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)


def test_names_that_begin_alike_are_not_tried_one_by_one(monkeypatch):
    """A company's prefix on 1,000 skills took 30 s: every mention of the prefix was compared with every name."""
    compared = []
    real = names._gaps
    monkeypatch.setattr(names, "_gaps", lambda *given: compared.append(1) or real(*given))
    index = NameIndex([Skill(f"acme-tool-{number}", "Acme.", "acme " * 20) for number in range(60)])
    assert index.mentions == [[]] * 60
    assert len(compared) == 0
    assert index.literal("Use acme-tool-7, acme tool 8 and acme tool.") == [7, 8]
    assert len(compared) == 2


@given(names_, st.text(st.sampled_from("abelphtwogmxyd-_` .é"), max_size=60))
def test_mentions_are_where_they_say_and_do_not_overlap(names, text):
    index = NameIndex([Skill(name, "d") for name in names])
    lowered, free = text.lower(), 0
    for mention in index.find(text):
        found = lowered[mention.start : mention.end].replace("_", "-").replace(" ", "-")
        assert found == names[mention.skills[0]]
        assert mention.start >= free
        free = mention.end


def test_declared_outputs_make_dependencies():
    skills = [
        Skill("consumer", "d", inputs=("csv", "json", "xml")),
        Skill("half", "d", outputs=("csv",)),
        Skill("most", "d", outputs=("CSV", ".json")),
        Skill("whole", "d", outputs=("csv", "json", "xml"), inputs=("csv",)),
    ]
    links = schema_links(skills, 8, 0.6)
    assert [(link.source, link.target, round(link.strength, 2)) for link in links] == [
        ("consumer", "whole", 1.0), ("consumer", "most", 0.67), ("whole", "half", 1.0), ("whole", "most", 1.0),
    ]  # fmt: skip
    assert [link.target for link in schema_links(skills, 1, 0.6)] == ["whole", "half"]


def test_the_graph_has_no_loops_and_keeps_the_stronger_of_two():
    names = NameIndex([])
    edges = [
        Edge(0, 0, "workflow", 1.0),
        Edge(0, 1, "semantic", 0.6),
        Edge(0, 1, "semantic", 0.8),
        Edge(1, 0, "dependency", 1.0),
    ]
    graph = SkillGraph(3, edges, names)
    assert [(edge.source, edge.target, edge.weight) for edge in graph.edges] == [
        (0, 1, pytest.approx(0.32)),
        (1, 0, 1.0),
    ]
    assert graph.counts() == {"dependency": 1, "workflow": 0, "semantic": 1, "alternative": 0}
    assert graph.degrees().tolist() == [2, 2, 0]
    assert graph.matrix(reverse_weights=None).toarray().tolist() == [[0, pytest.approx(0.32), 0], [1, 0, 0], [0, 0, 0]]
    assert graph.matrix().toarray()[0, 1] == pytest.approx(0.32 + 1.0)
    assert graph.matrix().toarray()[1, 0] == pytest.approx(1.0 + 0.2 * 0.8)


def test_dependencies_come_first_and_circles_are_cut_once():
    graph = SkillGraph(
        4, [Edge(0, 2, "dependency", 1.0), Edge(2, 3, "dependency", 1.0), Edge(1, 0, "workflow", 1.0)], NameIndex([])
    )
    assert graph.in_order([1, 0, 2, 3]) == [1, 3, 2, 0]
    assert graph.in_order([0, 3]) == [0, 3]
    circle = SkillGraph(2, [Edge(0, 1, "dependency", 1.0), Edge(1, 0, "dependency", 1.0)], NameIndex([]))
    with pytest.warns(UserWarning, match="circle"):
        assert circle.in_order([0, 1]) == [1, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert circle.in_order([1, 0]) == [0, 1]


def test_a_chain_of_any_length_is_ordered():
    chain = SkillGraph(3000, [Edge(at, at + 1, "dependency", 1.0) for at in range(2999)], NameIndex([]))
    assert chain.in_order(range(3000)) == list(range(2999, -1, -1))


def test_semantic_edges_by_an_embedder():
    skills = make(a_a="x", b_b="x", c_c="x")
    table = {"a": (1, 0), "b": (0.9, np.sqrt(0.19)), "c": (0, 1)}
    graph = build_skill_graph(skills, embedder=lambda texts: [table[text[0]] for text in texts])
    near = [(edge.source, edge.target, round(edge.strength, 3)) for edge in graph.edges]
    assert near == [(0, 1, 0.9), (1, 0, 0.9)]
    assert graph.counts()["semantic"] == 2
    assert build_skill_graph(skills[:1], embedder=lambda texts: [[1.0]]).edges == ()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"linker": "llm"}, "linker must be"),
        ({"linker": lambda skills: [1]}, "item 0 is no Link"),
        ({"linker": lambda skills: [Link("a-a", "b-b", "friend")]}, "item 0 is no Link"),
        ({"linker": lambda skills: [Link("a-a", "b-b", "workflow", 0.0)]}, "item 0 is no Link"),
        ({"linker": lambda skills: [Link("a-a", "z", "workflow")]}, "'a-a' and 'z'"),
        ({"link_top_k": -1}, "link_top_k"),
        ({"link_top_k": True}, "link_top_k"),
        ({"overlap": 0}, "overlap"),
    ],
)
def test_the_graph_refuses(options, part):
    library = SkillLibrary(make(a_a="x", b_b="x"))
    with pytest.raises(InputError) as caught:
        library.build_graph(**options)
    assert part in str(caught.value)


def test_a_linker_of_ones_own_and_a_language_model():
    library = SkillLibrary(make(a_a="x", b_b="x", c_c="x"))
    graph = library.build_graph(lambda skills: [Link("a-a", "b-b", "alternative", 0.5)]).graph
    assert [(edge.kind, edge.weight) for edge in graph.edges] == [("alternative", pytest.approx(0.15))]
    seen = []

    def model(prompts):
        seen.extend(prompts)
        return [
            "- Dependency | `b-b`\nworkflow | c-c\nworkflow | evil\nnonsense",
            "",
            "semantic | a-a\nalternative|a-a",
        ]

    graph = library.build_graph(LanguageModelLinker(model, candidates=2)).graph
    assert [(edge.source, edge.target, edge.kind) for edge in graph.edges] == [
        (0, 1, "dependency"), (0, 2, "workflow"), (2, 0, "alternative"),
    ]  # fmt: skip
    assert "Skill: a-a. Does things." in seen[0]
    assert seen[0].count("\n- ") == 2
    with pytest.raises(InputError, match="candidates"):
        LanguageModelLinker(model, candidates=0)


ANCHOR = profile(Skill("anchor", "d", inputs=("csv",), outputs=("pdf",)))


@pytest.mark.parametrize(
    ("kind", "member", "role"),
    [
        ("alternative", Skill("m", "Checks.", outputs=("csv",)), "fallback"),
        ("workflow", Skill("m", "d", outputs=("csv",)), "preprocessor"),
        ("workflow", Skill("m", "d", inputs=("xml",), outputs=("csv",)), "parser"),
        ("workflow", Skill("m", "Validates.", inputs=("pdf",)), "formatter"),
        ("workflow", Skill("m", "Validates."), "checker"),
        ("dependency", Skill("m", "d"), "preprocessor"),
        ("dependency", Skill("m", "d", inputs=("xml",)), "parser"),
        ("dependency", Skill("m", "d", inputs=("table",)), "preprocessor"),  # no file format
        ("workflow", Skill("m", "d"), "formatter"),
    ],
)
def test_roles_by_rule(kind, member, role):
    assert role_of(Edge(0, 1, kind, 1.0), profile(member), ANCHOR) == role


def test_groups_take_the_heaviest_edges_that_are_not_semantic():
    skills = make(a_a="x", b_b="x", c_c="x", d_d="x", e_e="x")
    edges = [
        Edge(0, 1, "alternative", 1.0), Edge(0, 2, "semantic", 1.0), Edge(0, 4, "workflow", 1.0),
        Edge(0, 3, "workflow", 1.0),
        Edge(1, 2, "dependency", 0.5), Edge(1, 3, "workflow", 1.0), Edge(2, 3, "workflow", 1.0, True),
    ]  # fmt: skip
    graph = SkillGraph(5, edges, NameIndex(skills))
    cues = [profile(skill) for skill in skills]
    groups = build_skill_groups(skills, graph, cues)
    assert [group.skills for group in groups] == [(0, 3, 4), (1, 3, 2), (2,), (3,), (4,)]
    assert build_skill_groups(skills, graph, cues, 0) == tuple(Group(place) for place in range(5))
    assert [len(group.members) for group in build_skill_groups(skills, graph, cues, 1)] == [1, 1, 0, 0, 0]
    with pytest.raises(InputError, match="max_members"):
        build_skill_groups(skills, graph, cues, -1)
    links = build_group_graph(graph, groups, cues)
    assert links.edges("support") == sorted(
        {pair for one, two in ((0, 3), (0, 4), (1, 3), (1, 2), (2, 3)) for pair in ((one, two), (two, one))}
    )
    assert links.edges("fallback") == [(0, 1), (1, 0)]
    assert links.edges("incompatibility") == [(2, 3), (3, 2)]
    assert links.link([3]).tolist() == [1.0, 1.0, -1.0, 0.0, 0.0]
    assert links.link([]).tolist() == [0.0] * 5


def test_artifacts_and_visible_checks_join_groups():
    skills = [
        Skill("giver", "Write csv."), Skill("taker", "Read csv."),
        Skill("tester", "Validates and reads csv."), Skill("other", "Read xml."),
    ]  # fmt: skip
    library = SkillLibrary(skills).build_graph(lambda skills: []).build_groups(0)
    order = {skill.name: place for place, skill in enumerate(library.skills)}
    assert (order["giver"], order["taker"]) in library.group_graph.edges("artifact")
    assert library.group_graph.edges("visible-check") == sorted(
        [(order["giver"], order["tester"]), (order["tester"], order["giver"])]
    )
    link = library.group_graph.link([order["giver"]])
    assert [link[order[name]] for name in ("giver", "taker", "tester", "other")] == [0.0, 0.8, 0.8, 0.0]


def test_groups_as_arrays():
    groups = [Group(0, (Member(1, "checker"), Member(2, "parser"))), Group(1), Group(2, (Member(0, "parser"),))]
    rows = GroupRows(groups)
    cover = np.array([[1.0, 0], [0, 0.5], [0.2, 0.1]])
    assert rows.cover(cover).tolist() == [[1.0, 0.5], [0.0, 0.5], [1.0, 0.1]]
    assert rows.mean(np.array([1.0, 2.0, 4.0])).tolist() == [3.0, 0.0, 1.0]
    assert GroupRows([Group(0)]).mean(np.array([5.0])).tolist() == [0.0]


def test_tfidf_cosines_are_those_of_scikit_learn():
    from sklearn.feature_extraction.text import TfidfVectorizer

    from steelyard.agents.goskills.words import stems

    skills = [
        Skill("csv-tables", "Clean tables and tables."),
        Skill("reports", "Write a report."),
        Skill("x-y", "Nothing here."),
    ]
    queries = ["clean a table, report it", "tables", "zzz"]
    theirs = TfidfVectorizer(analyzer=stems)
    cards = theirs.fit_transform([skill.card for skill in skills])
    expected = (theirs.transform(queries) @ cards.T).toarray()
    assert np.abs(CardVectors(skills).cosines(queries) - expected).max() < 1e-12
    assert CardVectors(skills).cosines([]).shape == (0, 3)
    assert len(CardVectors(skills)) == 3
    dense = CardVectors(skills, lambda texts: np.eye(3)[: len(texts)] * 7)
    assert dense.cosines(queries).tolist() == np.eye(3).tolist()


def test_the_real_library_has_the_kinds_of_edges_it_should(skill_folders):
    parts = [SkillLibrary.from_dir(folder, namespace=name) for name, folder in skill_folders.items()]
    library = SkillLibrary.join(parts).build_graph().build_groups()
    counts = library.graph.counts()
    assert counts["semantic"] == 0
    assert counts["workflow"] > counts["dependency"] > counts["alternative"] > 0
    names = [skill.name for skill in library.skills]
    edges = {(names[edge.source], names[edge.target]): edge.kind for edge in library.graph.edges}
    assert edges["rdkit", "datamol"] == "alternative"
    assert edges["stable-baselines3", "pufferlib"] == "alternative"
    assert all(len(group.members) <= 2 for group in library.groups)
