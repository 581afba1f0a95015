def run(name, folder, parallelism):
    return {}
