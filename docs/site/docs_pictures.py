def outdated():
    return []
