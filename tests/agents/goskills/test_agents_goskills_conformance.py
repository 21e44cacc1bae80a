"""What the acceptance test lets pass: a contract with roles, and no list, however well ranked or dressed."""

from __future__ import annotations

import dataclasses

import pytest

from steelyard.agents.goskills import conformance
from steelyard.agents.goskills.baselines import NamedFirstRetriever
from steelyard.agents.goskills.conformance import CONFORMANCE, DUMMIES, acceptance, check_contract, check_examples
from steelyard.agents.goskills.contract import Support
from steelyard.agents.goskills.retriever import GoSkillsRetriever
from steelyard.agents.goskills.shelf import Shelf


class Dressed:
    """The strongest trivial list, its skills after the first all called support, with their descriptions."""

    def __init__(self, library):
        self.inner = NamedFirstRetriever(Shelf(library), budget=8)

    def retrieve(self, task):
        contract = self.inner.retrieve(task)
        support = tuple(Support(skill.name, "support", skill.description) for skill in contract.payloads[1:])
        return dataclasses.replace(contract, support=support)


def test_the_method_passes_on_real_examples(skill_folders):
    acceptance(CONFORMANCE.implementation)


@pytest.mark.parametrize("dummy", [*DUMMIES.values(), Dressed], ids=[*DUMMIES, "dressed"])
def test_dummies_fail_both_parts(dummy, skill_folders):
    for part in (check_contract, check_examples, acceptance):
        with pytest.raises(AssertionError):
            part(dummy)


def test_the_ranked_list_finds_the_skills_and_fails_by_its_roles(skill_folders):
    with pytest.raises(AssertionError, match="tell their supporting skills apart"):
        check_examples(DUMMIES["identity"])


def test_without_backfill_named_skills_are_lost(skill_folders):
    with pytest.raises(AssertionError, match=r"recall|named gold"):
        check_examples(lambda library: GoSkillsRetriever(library, backfill=False))


def test_without_the_data_set_the_toy_library_is_asked(monkeypatch):
    def absent():
        raise conformance.DataMissingError("not here")

    monkeypatch.setattr(conformance.tasks, "real_skills", absent)
    conformance._real.cache_clear()
    acceptance(CONFORMANCE.implementation)
    conformance._real.cache_clear()


@pytest.mark.parametrize("bad", CONFORMANCE.bad_inputs, ids=lambda bad: bad.label)
def test_bad_inputs_are_refused(bad):
    with pytest.raises(ValueError, match=r"\w"):
        bad.call()
