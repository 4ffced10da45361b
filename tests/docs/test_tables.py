from docs import tables


def test_goals_are_compared_with_the_mean() -> None:
    rows = {row["task"]: row for row in tables._rows("ppo")}
    assert set(rows["HalfCheetah-v5"]) >= {"task", "steps", "seeds", "set out for"}
    row = {"task": "x", "mean of seeds [95% interval]": "**-164** [-177, -152]", "set out for": "-170"}
    assert tables._reached(row)
    assert not tables._reached({**row, "set out for": "-163"})
    assert tables._reached({**row, "set out for": "-164"})


def test_goals_that_were_missed_are_named() -> None:
    missed = [row["task"] for row in tables._rows("vmpo") if not tables._reached(row)]
    said = tables.shortfalls("vmpo", "")
    assert all(f"{task} at " in said for task in missed)
    assert said.startswith("**Goals not reached" if missed else "All ")
    assert tables.results_in_short("vmpo", "").count("**no**") == len(missed)


def test_comments_of_presets_are_told_apart() -> None:
    text = '# Walkers\n\n# Not tried.\n["A"]\nb = 2\n\n["B"]\n\n# Hoppers\n\n["C"]\n'
    notes = tables.preset_notes(f"# About\n# all of it.\n\n[common]\na = 1\n\n{text}")
    assert notes.intro == "About all of it."
    assert notes.sections == {"Walkers": ["A", "B"], "Hoppers": ["C"]}
    assert notes.notes == {"A": "Not tried.", "B": "", "C": ""}
