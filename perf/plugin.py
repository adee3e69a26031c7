"""The pytest plugin: the only module that knows pytest."""
