pytest_plugins = ("perf.plugin",)
