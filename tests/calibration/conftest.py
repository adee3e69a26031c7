import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--calibration-share",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="simulate this share of each cell's suites; then a cell only fails where luck is ruled out (1.0)",
    )
