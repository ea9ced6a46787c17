"""Columns of text, which a public feature extractor turns into numbers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from indknn.errors import InvalidInputError
from indknn.features import Extractor, find_extractor
from indknn.tables.column import PLACE, REFUSE, Column
from indknn.tables.values import as_texts
from indknn.types import FloatArray


@dataclass(frozen=True)
class Text(Column):
    """A text. `extractor` is the name or folder of a public extractor. `width` is the length of its features.

    >>> len(Text(extractor="all-MiniLM-L6-v2", width=384).places)
    385
    """

    kind = "text"
    extractor: str = ""
    width: int | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        if not isinstance(self.extractor, str) or not self.extractor:
            raise InvalidInputError(f"extractor must be the name of a model or its folder, got {self.extractor!r}")
        if self.missing not in {PLACE, REFUSE} and not isinstance(self.missing, str):
            raise InvalidInputError(f"missing must be 'place', 'refuse' or a text, got {self.missing!r}")
        if self.width is not None:
            if not str(self.width).isdigit() or not 1 <= int(self.width) <= 1 << 16:
                raise InvalidInputError(f"width must be from 1 to {1 << 16}, got {self.width!r}")
            self._keep(width=int(self.width))

    @property
    def _extractor(self) -> Extractor:
        return find_extractor(self.extractor)

    @property
    def places(self) -> list[str]:
        """One coordinate for each feature of the extractor, and one for gaps if they have a place."""
        width = self._extractor.n_features if self.width is None else self.width
        return [str(i) for i in range(width)] + ["missing"] * (self.missing == PLACE)

    def read(self, column: Any, name: str, blanks: Collection[str]) -> list[str | None]:
        """The texts. A gap that has a place is None."""
        texts = as_texts(column, name, blanks)
        if self.missing == REFUSE and None in texts:
            raise InvalidInputError(f"row {texts.index(None)}: column {name!r} must not be empty")
        return texts if self.missing in {PLACE, REFUSE} else [self.missing if t is None else t for t in texts]

    def write(self, values: list[str | None], out: FloatArray) -> None:
        """Extract each text separately. In a batch, the last bits of a row could depend on other texts (rule 1)."""
        out[:] = 0.0
        width = out.shape[1] - (self.missing == PLACE)
        for row, text in zip(out, values, strict=True):
            if text is None:
                row[-1] = 1.0
                continue
            (made,) = self._extractor([text])
            if len(made) != width:
                raise InvalidInputError(
                    f"{self.extractor} must give {width} features, as the schema says, got {len(made)}"
                )
            row[:width] = made
