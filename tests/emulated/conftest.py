from tests import profiles
from tests.machine import machine_of_their_own  # noqa: F401 - a fixture, which pytest finds here

profiles.register()
