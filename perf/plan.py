from perf.baseline import Store


def show(suites: list[str] | None, store: Store) -> int:
    raise NotImplementedError
