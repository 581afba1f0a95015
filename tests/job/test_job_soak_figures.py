"""The figures of a soak: a steady growth shows, and a single spike does not."""

from pathlib import Path

from benchmarks.soak import growth, plot


def test_growth_is_that_of_most_samples_after_the_first_third(tmp_path: Path) -> None:
    samples = [
        {"at_s": 10.0 * number, "checkpoints": 40.0 * number, "grows": 3.0 * number, "flat": 5.0, "fills": 7.0}
        for number in range(30)
    ]
    samples[20]["flat"] = 5000.0
    for number in range(9):
        samples[number]["fills"] = float(number)
    by_hour = growth(samples, "at_s", 3600)
    assert (by_hour["grows"], by_hour["flat"], by_hour["fills"]) == (1080.0, 0.0, 0.0)
    assert growth(samples, "checkpoints", 1000)["grows"] == 75.0
    plot(samples, tmp_path / "soak.svg")
    assert "grows, up to 87" in (tmp_path / "soak.svg").read_text()
