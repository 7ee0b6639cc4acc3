"""The catalogue: who may be named, who must stay, and who makes room, against a plain model of the rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.adapters.catalogue import Catalogue, Entry
from sample_adapter import sample_adapter

NAMES = "abcd"


def entry(name: str, nbytes: int, number: int = 1, *, pinned: bool = False) -> Entry:
    plan = sample_adapter(name, (nbytes // 2, nbytes - nbytes // 2))
    return Entry(plan, number, digest=f"{name}{number}", pinned=pinned)


def filled(budget: int, **sizes: int) -> Catalogue:
    catalogue = Catalogue(budget)
    for number, (name, size) in enumerate(sizes.items(), 1):
        catalogue.publish(entry(name, size, number))
    return catalogue


def names(catalogue: Catalogue) -> list[str]:
    return [info.name for info in catalogue.infos()]


def test_the_one_used_longest_ago_makes_room() -> None:
    catalogue = filled(30, a=10, b=10, c=10)
    held = catalogue.use("a")
    catalogue.release(held)
    assert [victim.name for victim in catalogue.make_room("new", 15)] == ["b", "c"]
    assert names(catalogue) == ["a"]


def test_pinned_and_used_ones_stay_and_the_refusal_says_so() -> None:
    catalogue = filled(30, a=10, b=10, c=10)
    catalogue.keep("a", pinned=True)
    held = catalogue.use("b")
    with pytest.raises(lm.ResourceError) as caught:
        catalogue.make_room("new", 15)
    assert caught.value.code == "LM-ADAPTER-BUDGET"
    assert "15 of 30 bytes" in str(caught.value)
    assert "a 10 bytes, pinned; b 10 bytes, used by 1 requests" in caught.value.report.why
    assert names(catalogue) == ["a", "b", "c"]
    catalogue.release(held)
    catalogue.keep("a", pinned=False)
    assert [victim.name for victim in catalogue.make_room("new", 15)] == ["c", "b"]


def test_one_that_is_larger_than_everything_is_refused() -> None:
    with pytest.raises(lm.ResourceError, match="larger than all room"):
        filled(30, a=10).make_room("new", 31)


def test_a_name_that_is_taken_over_leaves_its_old_content_to_those_who_use_it() -> None:
    catalogue = filled(100, a=10)
    old = catalogue.use("a")
    assert catalogue.publish(entry("a", 20, 2)) is None
    assert catalogue.use("a").number == 2
    assert catalogue.release(old)
    catalogue.drop(old)
    assert [each.number for each in catalogue.held()] == [2]


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(lm.UsageError, match="no adapter is called 'x'") as caught:
        filled(30, a=10, b=10).use("x")
    assert caught.value.report.why == "loaded: a, b"


ACTIONS = st.one_of(
    st.tuples(st.just("load"), st.sampled_from(NAMES), st.integers(1, 60)),
    st.tuples(st.sampled_from(("use", "release", "retire", "pin", "unpin")), st.sampled_from(NAMES), st.just(0)),
)


@given(st.lists(ACTIONS, max_size=60))
def test_any_history_keeps_the_rules(actions: list[tuple[str, str, int]]) -> None:
    catalogue = Catalogue(100)
    holds: list[Entry] = []
    closed: list[Entry] = []

    def close(each: Entry) -> None:
        assert not each.uses
        assert each not in closed
        catalogue.drop(each)
        closed.append(each)

    for number, (action, name, size) in enumerate(actions, 1):
        known = name in names(catalogue)
        try:
            if action == "load":
                new = entry(name, size, number)
                for victim in catalogue.make_room(name, size):
                    assert not victim.pinned
                    close(victim)
                if (old := catalogue.publish(new)) is not None:
                    close(old)
            elif action == "use":
                holds.append(catalogue.use(name))
            elif action == "release" and holds:
                hold = holds.pop(0)
                if catalogue.release(hold):
                    close(hold)
            elif action == "retire":
                gone, unused = catalogue.retire(name)
                if unused:
                    close(gone)
            elif action in ("pin", "unpin"):
                catalogue.keep(name, pinned=action == "pin")
        except lm.UsageError:
            assert not known
        except lm.ResourceError:
            kept = sum(each.nbytes for each in catalogue.held() if each.pinned or each.uses)
            assert kept + size > catalogue.budget
        held = catalogue.held()
        assert sum(each.nbytes for each in held) <= catalogue.budget
        assert set(holds) <= set(held)
        assert all(each.uses for each in held if each.retired)
        assert sorted(info.using for info in catalogue.infos()) == sorted(each.uses for each in held if not each.retired)
