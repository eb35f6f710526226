"""The recipe's corpus: licences, the split, and prompts."""

from __future__ import annotations

import pytest

from experiments.recipes.corpus import Document, is_permissive, prompts_from


@pytest.mark.parametrize(
    "licence",
    [
        "MIT",
        "BSD-3-Clause",
        "Apache Software License",
        "PSF-2.0",
        "ISC License (ISCL)",
        "Apache-2.0 OR BSD-2-Clause",
    ],
)
def test_permissive_licences(licence: str) -> None:
    assert is_permissive(licence)


@pytest.mark.parametrize(
    "licence",
    [
        "",
        "UNKNOWN",
        "GPL-3.0",
        "LGPLv3 and MIT",
        "Mozilla Public License 2.0",
        "MPL-2.0 AND MIT",
        "CC-BY-NC-4.0",
    ],
)
def test_other_licences(licence: str) -> None:
    assert not is_permissive(licence)


def test_the_split_depends_on_the_text_alone() -> None:
    documents = [Document("a", f"{i}.py", f"x = {i}\n") for i in range(5000)]
    again = [Document("b", "other.py", document.text) for document in documents]
    assert [d.held_out for d in documents] == [d.held_out for d in again]
    assert 0.01 < sum(d.held_out for d in documents) / len(documents) < 0.03


def test_prompts_open_code_and_take_turns_between_sources() -> None:
    body = "".join(f"        {name} = 1\n" for name in "abcde")
    code = f"import os\nimport sys\n\nLIMIT = 3\n\nclass Thing:\n    def run(self):\n{body}        return a\n"
    documents = [Document("big", f"{i}.py", f"# {i}\n" + code) for i in range(5)] + [
        Document("small", "s.py", code)
    ]
    prompts = prompts_from(documents, 3)
    assert len(prompts) == 3
    assert prompts[1] == prompts_from(documents[-1:], 1)[0]
    assert all(prompt.endswith("d = 1") for prompt in prompts)
    assert prompts_from([Document("a", "a.py", "x = 1\n" * 50)], 3) == []
