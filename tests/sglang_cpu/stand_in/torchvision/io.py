"""Names only: see the package's docstring."""

from typing import NoReturn


class ImageReadMode:
    """Exists to be imported."""


def decode_image(*_args: object, **_options: object) -> NoReturn:
    raise NotImplementedError("this torchvision is a stand-in without images (tests/sglang_cpu/stand_in)")
