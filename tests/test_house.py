"""`tools/house.py` measures what it says, and the roads through the code keep their limits."""

import pytest
from tools import house


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_it_counts_lines_files_and_the_longest_function(tmp_path):
    write(tmp_path, "indknn/top.py", "x = 1\n")
    write(tmp_path, "indknn/core/a.py", "def f():\n    x = 1\n    return x\n")
    write(tmp_path, "indknn/core/below/b.py", "async def g():\n    return 1\n")
    write(tmp_path, "indknn_lab/deep/c.py", "y = 1\n")
    found = house.rooms(tmp_path)
    assert list(found) == ["indknn", "indknn/*.py", "indknn/core", "indknn_lab"]
    assert found["indknn/core"] == house.Room(5, 2, (3, "a.py:f"))
    assert (found["indknn"].lines, found["indknn"].files) == (6, 3)
    assert found["indknn_lab"] == house.Room(1, 1, (0, "none"))


def test_it_finds_eight_lines_that_stand_twice_whatever_is_between_them(tmp_path):
    lines = [f"value_{i} = {i}" for i in range(9)]
    write(tmp_path, "a.py", "import os\n" + "\n".join(lines))
    write(tmp_path, "b.py", "other = 1\n# a comment\n" + "\n\n    # another\n".join(lines))
    write(tmp_path, "c.py", "from x import (\n    y,\n)\n" + "\n".join(lines[:7]))
    assert house.passages(tmp_path) == ["b.py:3 is as a.py:2"]


def test_it_finds_classes_of_the_product_that_have_one_name(tmp_path):
    write(tmp_path, "indknn/a.py", "class Row:\n    pass\nclass Other:\n    pass\n")
    write(tmp_path, "indknn/core/b.py", "x = 1\nclass Row:\n    class Other:\n        pass\n")
    write(tmp_path, "indknn_lab/c.py", "class Row:\n    pass\n")
    assert house.twins(tmp_path) == ["indknn/core/b.py:2 is Row as indknn/a.py:1"]


def test_every_broken_limit_is_a_line(monkeypatch):
    monkeypatch.setattr(house, "LIMITS", {"indknn": (10, 1, 5), "indknn_lab": (10, 1, 5)})
    monkeypatch.setattr(house, "DUPLICATES", 0)
    rooms = {"indknn": house.Room(11, 2, (6, "a.py:f")), "indknn_lab": house.Room(10, 1, (5, "b.py:g"))}
    assert house.broken(rooms, [], []) == [
        "indknn has 11 lines, at most 10",
        "indknn has 2 files, at most 1",
        "indknn has 6 lines in a.py:f, at most 5",
    ]
    monkeypatch.setattr(house, "TWINS", 0)
    new = {"new": house.Room(1, 1, (1, "c.py:h"))}
    assert house.broken(new, ["b.py:1 is as a.py:1"], ["b.py:2 is Row as a.py:2"]) == [
        "new has no limit: write one into tools/house.py",
        "1 passages stand twice, at most 0: b.py:1 is as a.py:1",
        "1 classes have the name of another, at most 0: b.py:2 is Row as a.py:2",
    ]


@pytest.mark.slow
def test_no_road_changes_files_more_often_than_it_may():
    assert house.broken_roads() == []
