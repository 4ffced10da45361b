"""The index of the API: what a user needs first, and summaries that can be read alone."""

import re
from collections import defaultdict

import minerva
from docs import api


def listed(text: str) -> list[str]:
    return re.findall(r"^\| \[`(\w+)`\]", text, re.MULTILINE)


def test_the_index_begins_with_train_and_load_and_lists_all_that_the_package_exports() -> None:
    first, _, rest = api.index_page().partition("## All classes and functions")
    assert listed(first)[:3] == ["train", "load", "Policy"]
    assert sorted(listed(first)) == sorted(minerva._WHERE)
    assert listed(rest)[:3] == ["train", "load", "Policy"]  # of minerva.api, the first module
    assert {"RolloutBuffer", "ReplayBuffer", "clipped_policy_loss", "RunningNorm"} <= set(listed(rest))


def test_the_page_of_the_top_level_begins_with_train_and_keeps_every_name() -> None:
    text = api.page("minerva", ["minerva.api"])
    (members,) = re.findall(r"members: \[(.+)\]", text)
    names = members.split(", ")
    assert names[:3] == ["train", "load", "Policy"]
    assert {entry.name for entry in api.public("minerva.api")} | {"ALGORITHMS"} == set(names)
    assert "members:" not in api.page("minerva.storage", ["minerva.storage.replay"])  # in the order of the source


def test_a_summary_is_the_first_sentence() -> None:
    assert api._first_sentence("Load a policy. No environment is needed.\n\nMore.") == "Load a policy."
    assert api._first_sentence("Compute it (Song et al. 2020, eq. 3)\nby parts. `x` is y.") == (
        "Compute it (Song et al. 2020, eq. 3) by parts."
    )


def test_summaries_are_sentences_that_tell_names_apart() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for _, modules in api.pages().values():
        for module in modules:
            for entry in api.public(module):
                found[entry.summary].append(f"{module}.{entry.name}")
    assert sum(map(len, found.values())) > 400
    fragments = {summary for summary in found if not re.fullmatch(r"[A-Z`\d].*[.:]", summary)}
    assert fragments == set()
    own = {summary: [name for name in names if ".compat." not in name] for summary, names in found.items()}
    assert {summary: names for summary, names in own.items() if len(names) > 1} == {}
