"""Makes the table of errors from trtllm_lite/errors.py."""

import inspect

from documents.variants import markdown
from trtllm_lite import errors


def errors_table() -> str:
    """A row for each class of errors."""
    classes = [found for found in vars(errors).values() if inspect.isclass(found)]
    rows = []
    for found in classes:
        if not issubclass(found, errors.TrtllmLiteError):
            continue
        first = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
        name = found.__name__
        link = name if found is errors.TrtllmLiteError else f"[{name}](#{name.lower()})"
        rows.append([link, first])
    return markdown(("error", "meaning"), rows) + "\n"
