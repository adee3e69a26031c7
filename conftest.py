from perf import carrier

pytest_plugins = ("perf.plugin",)

# `pytest-benchmark compare` knows no plugins and asks this file.
pytest_benchmark_scale_unit = carrier.pytest_benchmark_scale_unit
