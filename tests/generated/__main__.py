"""`python -m tests.generated`: write each generated file whose content changed, and print it."""

from __future__ import annotations

from tests.generated.files import files

for path, text in files():
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)
