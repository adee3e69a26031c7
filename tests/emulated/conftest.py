from tests import profiles

profiles.register()
