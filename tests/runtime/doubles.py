"""A library that answers what a test says, and has nothing else: configuring or resetting it would be an error."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from attrs import define, field
from manifests import GOOD_MODELS, VERSION

from runtime.calrt import ModelInfo, ReleaseRefused


@define
class Handle:
    """What calbin and device share."""

    refuses_release: bool = False
    released: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released = True
        if self.refuses_release:
            raise ReleaseRefused("the Device was not released: 17, busy")


@define
class CalbinDouble(Handle):
    answer: tuple[int, tuple[ModelInfo, ...]] = (0, GOOD_MODELS)

    def models(self) -> tuple[int, tuple[ModelInfo, ...]]:
        return self.answer


@define
class DeviceDouble(Handle):
    memory: tuple[int, int] = (0, 123456)

    def memory_used(self) -> tuple[int, int]:
        return self.memory


@define
class LibraryDouble:
    path: Path = Path("double.so")
    says: tuple[int, str] = (0, VERSION)
    calbin_code: int = 0
    the_calbin: CalbinDouble = field(factory=CalbinDouble)
    device_code: int = 0
    the_device: DeviceDouble = field(factory=DeviceDouble)
    numbers: list[int] = field(factory=list)

    def version(self) -> tuple[int, str]:
        return self.says

    def last_error(self) -> str:
        return "what():\n  bad_alloc"

    def calbin(self, path: Path) -> tuple[int, CalbinDouble | None]:
        return self.calbin_code, None if self.calbin_code else self.the_calbin

    def device(self, number: int) -> tuple[int, DeviceDouble | None]:
        self.numbers.append(number)
        return self.device_code, None if self.device_code else self.the_device
