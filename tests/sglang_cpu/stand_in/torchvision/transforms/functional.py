"""Names only: see the package's docstring."""

from typing import NoReturn

from torchvision.transforms import InterpolationMode

__all__ = ["InterpolationMode", "pil_to_tensor"]


def pil_to_tensor(*_args: object, **_options: object) -> NoReturn:
    raise NotImplementedError("this torchvision is a stand-in without images (tests/sglang_cpu/stand_in)")
