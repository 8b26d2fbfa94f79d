import pytest

from diagrams import gallery


@pytest.fixture(scope="session")
def committed():
    """The pictures that are to be committed, by path: made once, because counterexamples are searched for."""
    return gallery.drawings()
