"""The diff parser and applier, checked against difflib and against damage."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import UserError
from kit.patches.diff import parse, patched, reverse, split_lines

# Few different lines, so that context is ambiguous; a form feed and a carriage return, which must not split lines.
LINE = st.sampled_from(
    ["a\n", "b\n", "\n", "  x = 1\n", "\x0cpage\n", "cr\r\n", "--- a/x\n", "@@\n"]
)
TEXT = st.builds(
    lambda lines, end: "".join(lines) + end, st.lists(LINE, max_size=40), st.sampled_from(["", "z"])
)


def diff_of(old: str, new: str, creates: bool = False, context: int = 3) -> str:
    """Write a unified diff as git does, with the mark for a missing line end."""
    name = "/dev/null" if creates else "a/f.py"
    out = []
    for line in difflib.unified_diff(split_lines(old), split_lines(new), name, "b/f.py", n=context):
        out.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(out)


@given(TEXT, TEXT, st.integers(0, 3))
def test_applying_a_diff_gives_the_new_text_and_its_reverse_the_old_one(
    old: str, new: str, context: int
) -> None:
    if old == new:
        return
    _, (diff,) = parse(diff_of(old, new, context=context))
    assert patched(old, diff) == new
    assert patched(new, reverse(diff)) == old


@given(TEXT.filter(bool))
def test_a_new_file_is_created_and_never_overwritten(new: str) -> None:
    head = "diff --git a/f.py b/f.py\nnew file mode 100644\nindex 000..123\n"
    header, (diff,) = parse("Subject: x\n\n" + head + diff_of("", new, creates=True))
    assert header == "Subject: x\n\n"
    assert diff.creates
    assert patched(None, diff) == new
    with pytest.raises(UserError, match="exists already"):
        patched("anything", diff)


@given(st.lists(LINE, min_size=8, max_size=30), st.data())
def test_a_changed_context_line_is_refused(lines: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(lines) - 1))
    new = [*lines[:at], "new line\n", *lines[at + 1 :]]
    _, (diff,) = parse(diff_of("".join(lines), "".join(new)))
    near = data.draw(st.integers(max(0, at - 3), min(len(lines) - 1, at + 3)))
    damaged = [*lines[:near], "damaged\n", *lines[near + 1 :]]
    with pytest.raises(UserError, match="not those"):
        patched("".join(damaged), diff)


@given(st.lists(LINE, min_size=8, max_size=30))
def test_a_moved_place_is_refused(lines: list[str]) -> None:
    _, (diff,) = parse(diff_of("".join(lines), "".join([*lines[:4], "new\n", *lines[4:]])))
    with pytest.raises(UserError, match="not those"):
        patched("".join(["one more\n", "and more\n", *lines]), diff)


@given(TEXT, TEXT, st.data())
def test_a_diff_cut_short_is_refused(old: str, new: str, data: st.DataObject) -> None:
    text = diff_of(old, new)
    lines = split_lines(text)
    if len(lines) < 4:
        return
    kept = lines[: data.draw(st.integers(0, len(lines) - 1))]
    try:
        _, (diff,) = parse("".join(kept))
    except UserError:
        return
    # What is left is a whole diff of fewer hunks, or lost only the mark for a missing line end.
    assert len(kept) > 2
    assert kept[-1][:1] in " +-\\"
    assert len(diff.hunks) <= text.count("\n@@ -")


def test_several_files_with_the_lines_of_git() -> None:
    text = (
        "Subject: two\n\nWhat: --- is fine inside a line\n\n"
        "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1 +1 @@ def f():\n-a\n+b\n"
        "diff --git a/d/y b/d/y\nnew file mode 100644\nindex 0..2\n--- /dev/null\n+++ b/d/y\n"
        "@@ -0,0 +1,2 @@\n+one\n+two\n"
    )
    header, files = parse(text)
    assert header.startswith("Subject: two")
    assert [(f.path, f.creates) for f in files] == [("x", False), ("d/y", True)]
    assert patched("a\n", files[0]) == "b\n"
    assert patched(None, files[1]) == "one\ntwo\n"


HUNK = "@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("only words\n", "changes no file"),
        ("--- a/x\n", "no file header"),
        ("--- a/x\nfoo\n", "should start"),
        ("--- a/x\n+++ b/x\n", "changes nothing"),
        ("--- a/x\n+++ /dev/null\n" + HUNK, "deletes or renames"),
        ("--- a/x\n+++ b/y\n" + HUNK, "deletes or renames"),
        ("--- a/../../x\n+++ b/../../x\n" + HUNK, "leaves the target"),
        ("--- /etc/x\n+++ /etc/x\n" + HUNK, "leaves the target"),
        ("--- a/x\n+++ b/x\n" + HUNK + "junk\n", "no file header"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n+b\n", "ends too early"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n?b\n", "neither context nor change"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n+b\n+c\n-d\n", "lengths"),
        ("--- a/x\n+++ b/x\n" + HUNK + "--- a/x\n+++ b/x\n" + HUNK, "twice"),
        ("diff --git a/x b/y\nrename from x\n", "not supported"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", "not supported"),
        ("diff --git a/x b/x\ndeleted file mode 100644\n", "not supported"),
    ],
)
def test_what_is_no_strict_diff_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text)


def test_a_missing_file_is_not_made_up() -> None:
    _, (diff,) = parse("--- a/x\n+++ b/x\n" + HUNK)
    with pytest.raises(UserError, match="does not exist"):
        patched(None, diff)
