from changelog_harness import make_harness

__all__ = ["make_harness"]
