from changelog_kit import make_threaded

__all__ = ["make_threaded"]
