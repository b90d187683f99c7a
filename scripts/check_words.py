"""Finds comments and docstrings that begin with a word that is no subject: ``check_words.py FOLDER…``.

"Of each token, or none." tells a new reader nothing; "Log probabilities by token, empty if not requested." does. Only
the first word of a text is looked at, in the tracked Python, C++, CUDA and shell files of the folders. The exit code is
1 if a text is found.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

NEVER = frozenset(("Of", "Those", "Whose", "Behind", "Beside", "Also", "And", "Or", "Nor"))
"""Words that begin no sentence of this project."""
BEFORE_A_CLAUSE = frozenset(("From", "By"))
"""Words that may begin a text whose first sentence has a comma, as in "From 64 rows on, tiles are computed."."""
_REFERENCE = re.compile(r"As (?:(?::\w+:)?`|\w+(?:::\w+|\(\)))")
_FIRST_SENTENCE = re.compile(r".*?(?=[.:;](?:\s|$)|$)", re.DOTALL)
_COMMENT_MARK = {".py": "#", ".pyi": "#", ".sh": "#", ".cc": "//", ".h": "//", ".cuh": "//", ".cu": "//"}

Text = tuple[int, str]  # the line on which a text begins, counted from 1, and the text


def lacks_subject(text: str) -> bool:
    """Whether a comment or docstring begins without a subject, judged by its first word."""
    text = text.strip()
    first, *_ = text.split(maxsplit=1) or [""]
    word = first.rstrip(",")
    if word in BEFORE_A_CLAUSE:
        sentence = _FIRST_SENTENCE.match(text)
        return sentence is None or "," not in sentence[0]
    return word in NEVER or _REFERENCE.match(text) is not None


def texts_of(suffix: str, source: str) -> Iterator[Text]:
    """The comments and docstrings of a file with this ``suffix``; comments on consecutive lines are one text."""
    if suffix in (".py", ".pyi"):
        yield from _strings(source)
        yield from _joined(_python_comments(source))
    else:
        yield from _joined(_other_comments(_COMMENT_MARK[suffix], source))


def _strings(source: str) -> Iterator[Text]:
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def _python_comments(source: str) -> Iterator[tuple[int, bool, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], not token.line[: token.start[1]].strip(), token.string.lstrip("#: ")


def _other_comments(mark: str, source: str) -> Iterator[tuple[int, bool, str]]:
    pattern = re.compile(rf"(?:^|\s){mark}\s+(.*)")
    for number, line in enumerate(source.splitlines(), 1):
        match = pattern.search(line)
        if match:
            yield number, not line[: match.start()].strip(), match[1]


def _joined(comments: Iterator[tuple[int, bool, str]]) -> Iterator[Text]:
    """Joins comments on consecutive lines without code; a comment's second entry says whether its line has no code."""
    begin, end, parts = 0, 0, list[str]()
    for number, is_alone, text in comments:
        if not (is_alone and parts and number == end + 1):
            if parts:
                yield begin, " ".join(parts)
            begin, parts = number, []
        parts.append(text)
        end = number if is_alone else 0
    if parts:
        yield begin, " ".join(parts)


def main() -> int:
    """Print every text of the folders that lacks a subject."""
    listed = subprocess.run(["git", "ls-files", "-z", *sys.argv[1:]], capture_output=True, text=True, check=True)
    num_found = 0
    for path in filter(None, listed.stdout.split("\0")):
        suffix = Path(path).suffix
        if suffix in _COMMENT_MARK:
            for line, text in sorted(texts_of(suffix, Path(path).read_text(encoding="utf-8"))):
                if lacks_subject(text):
                    print(f"{path}:{line}: expected a named subject first, found: {' '.join(text.split())[:80]}")
                    num_found += 1
    return int(num_found > 0)


if __name__ == "__main__":
    sys.exit(main())
