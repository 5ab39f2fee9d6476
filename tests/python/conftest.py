from fixtures import mp, private_catalog, program_is_there, tmpfs  # noqa: F401
