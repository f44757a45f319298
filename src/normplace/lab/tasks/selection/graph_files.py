"""Graphs from files: edge lists, CSV, NumPy archives and GraphML.

Node ids may be any text. Direction, weights, self-loops and repeated edges are dropped: a :class:`Graph` has none.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from normplace.errors import UsageError
from normplace.lab.tasks.data_files import read_arrays, read_file
from normplace.lab.tasks.selection.graph import Graph, relabel

TEXT = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el", ".mtx")
COMMENTS = ("#", "%", "//")
SOURCES, TARGETS = ("source", "src", "from", "u"), ("target", "dst", "to", "v")
"""Column names that a CSV header may use, in any case."""
FIELDS = ("edges", "edge_index", "num_nodes", "indptr", "indices", "row", "col", "shape")
SEPARATORS = ("\t", ";", ",")
"""Characters between columns; a line without them is separated by white space."""


@dataclass(frozen=True, eq=False)
class NamedGraph:
    """A graph and the former id of each of its nodes.

    Attributes:
        graph: The graph.
        names: The ids in the file, by node: integers or text.
        doubt: How the first line of a text was read, if it may be meant otherwise; otherwise empty.
    """

    graph: Graph
    names: NDArray[Any]
    doubt: str = ""


def read_graph(path: str | Path) -> NamedGraph:
    """Read a graph; the format follows from the ending of the name, which ``.gz`` may follow.

    ========================================  ========================================================================
    ``.txt .edges .edgelist .el .csv .tsv``   One edge per line: two ids, separated by commas, semicolons, tabs or white
                                              space. More columns are ignored, and so are lines that start with ``#``,
                                              ``%`` or ``//``. A first line of column names is recognized.
    ``.mtx``                                  Matrix Market coordinates of a square matrix, whose rows are the nodes.
    ``.npz``                                  ``edges`` (edges × 2) or ``edge_index`` (2 × edges), with or without
                                              ``num_nodes``; or a square sparse matrix of SciPy.
    ``.graphml``                              Nodes and edges of all graphs in the file.
    ========================================  ========================================================================

    Raises:
        UsageError: If the file is missing or damaged, has no edges, or a line is not an edge.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}: check the path.")
    kind = Path(path.stem).suffix.lower() if path.suffix == ".gz" else path.suffix.lower()
    if kind == ".npz":
        return _from_arrays(path)
    if kind == ".graphml":
        return _from_graphml(path)
    if kind in TEXT:
        return _from_text(path, kind)
    raise UsageError(f"{path} has an unknown ending: use {', '.join(TEXT)}, .npz or .graphml.")


def _named(path: Path, pairs: Any, extra: Sequence[str] = ()) -> NamedGraph:
    """The graph of pairs of ids.

    Args:
        path: The file, for errors.
        pairs: Ids, shape (edges, 2).
        extra: Ids of further nodes, which may lack edges.
    """
    if not len(pairs):
        raise UsageError(f"{path} has no edges: give a file with at least one.")
    edges, names = relabel(pairs)
    alone = sorted(set(extra) - set(names.tolist()))
    if alone:
        names = np.concatenate([names, np.array(alone)])
    return NamedGraph(Graph.from_edges(edges, len(names)), names)


def _from_arrays(path: Path) -> NamedGraph:
    if path.suffix == ".gz":
        raise UsageError(f"{path} is compressed twice: unpack the .gz file.")
    try:
        with zipfile.ZipFile(path) as archive:
            stored = [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is not an .npz file ({error}): write it again.") from error
    arrays = read_arrays(path, [name for name in stored if name in FIELDS], str(path))
    pairs = _pairs(path, arrays)
    if not {"edges", "edge_index", "num_nodes"} & arrays.keys() and "shape" in arrays:
        arrays = {**arrays, "num_nodes": np.asarray(_rows(path, arrays["shape"].tolist()))}
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise UsageError(
            f"{path} has edges of shape {pairs.shape} and dtype {pairs.dtype}: store integers, edges × 2 in 'edges' or "
            "2 × edges in 'edge_index'."
        )
    if "num_nodes" not in arrays:
        return _named(path, pairs)
    try:
        count = int(arrays["num_nodes"])
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path} has a num_nodes that is not a whole number: correct it.") from error
    return NamedGraph(Graph.from_edges(pairs, count), np.arange(count))


def _rows(path: Path, shape: Any) -> int:
    """The number of rows of an adjacency matrix.

    Raises:
        UsageError: If it is not square.
    """
    if not isinstance(shape, list) or len(shape) != 2 or shape[0] != shape[1]:
        raise UsageError(f"{path} has a matrix of shape {shape}: give the square matrix of a graph, nodes × nodes.")
    return int(shape[0])


def _pairs(path: Path, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    if "edges" in arrays:
        return arrays["edges"]
    if "edge_index" in arrays:
        return arrays["edge_index"].T
    if {"indptr", "indices"} <= arrays.keys():  # SciPy's save_npz of a CSR or CSC matrix
        counts = np.diff(arrays["indptr"])
        if (counts < 0).any() or counts.sum() != len(arrays["indices"]):
            raise UsageError(f"{path} has an indptr that does not fit its indices: write it again.")
        return np.stack([np.repeat(np.arange(len(counts)), counts), arrays["indices"]], axis=1)
    if {"row", "col"} <= arrays.keys():
        return np.stack([arrays["row"], arrays["col"]], axis=1)
    raise UsageError(f"{path} has no array 'edges' or 'edge_index': store one of them.")


def _from_graphml(path: Path) -> NamedGraph:
    nodes: list[str] = []
    pairs: list[tuple[str, str]] = []
    try:
        for _, element in ElementTree.iterparse(io.BytesIO(read_file(path))):
            tag = element.tag.rpartition("}")[2]
            if tag == "node":
                nodes.append(element.attrib["id"])
            elif tag == "edge":
                pairs.append((element.attrib["source"], element.attrib["target"]))
            if tag in ("node", "edge"):
                element.clear()
    except ElementTree.ParseError as error:
        raise UsageError(f"{path} is not GraphML: {error}.") from error
    except KeyError as error:
        raise UsageError(f"{path} has a node or edge without the attribute {error}: write it again.") from error
    return _named(path, pairs, nodes)


def _from_text(path: Path, kind: str) -> NamedGraph:
    try:
        text = read_file(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: convert it, or check the format.") from error
    lines = _content(text)
    first = next(lines, None)
    if first is None:
        raise UsageError(f"{path} has no edges: give a file with at least one.")
    if kind == ".mtx":
        return _from_matrix(path, text, *first)
    separator = _separator(first[1], kind)
    cells = _cells(first[1], separator)
    columns, header = _columns(cells)
    number, _ = first
    skipped = number if header else number - 1
    fast = _integers(text, separator, columns, skipped)
    doubt = ""
    if fast is None and not (header or any(map(_is_whole, cells[:2]))):  # column names of another kind
        fast = _integers(text, separator, columns, number)
        if fast is not None and len(cells) > len(columns):
            doubt = (
                f"{path}:{number} names no columns source and target, so edges are those of the first two columns, "
                f"{cells[0]!r} and {cells[1]!r}."
            )
    if fast is not None:
        return replace(_named(path, fast), doubt=doubt)
    pairs = _edges(path, text, separator, columns, skipped)
    if header and np.isin([cells[column] for column in columns], pairs).any():  # nodes, such as u and v
        pairs = _edges(path, text, separator, columns, number - 1)
    elif not header and len(pairs) > 1 and not np.isin(cells[:2], pairs[1:]).any():
        doubt = (
            f"{path}:{number} was read as an edge between {cells[0]!r} and {cells[1]!r}, which no other line has: if "
            "it is a header, name its columns source and target."
        )
    return replace(_named(path, pairs), doubt=doubt)


def _from_matrix(path: Path, text: str, number: int, sizes: str) -> NamedGraph:
    """The graph of Matrix Market coordinates, from 1, below the line of sizes with this number."""
    if not all(map(_is_whole, cells := sizes.split())) or len(cells) != 3:
        raise UsageError(f"{path}:{number} is not a line of rows, columns and entries: {sizes[:60]!r}.")
    *shape, entries = map(int, cells)
    count = _rows(path, shape)
    pairs = _integers(text, None, (0, 1), number)
    if pairs is None:
        pairs = _edges(path, text, None, (0, 1), number)
        if not len(pairs):
            raise UsageError(f"{path} has no edges: give a file with at least one.")
        raise UsageError(f"{path} has an entry whose row and column are not whole numbers: correct it.")
    if len(pairs) != entries:
        raise UsageError(f"{path} has {len(pairs)} entries, but line {number} promises {entries}: write it again.")
    if pairs.min() < 1 or pairs.max() > count:
        raise UsageError(f"{path} has an entry outside its {count} rows and columns: correct it.")
    return NamedGraph(Graph.from_edges(pairs - 1, count), np.arange(1, count + 1))


def _separator(line: str, kind: str) -> str | None:
    """The separator of columns: the one that leaves no other one in the two ids; None for white space."""
    present = [mark for mark in SEPARATORS if mark in line]
    splits = {mark: cells[:2] for mark in present if len(cells := _cells(line, mark)) > 1}
    for mark, ids in splits.items():
        if not any(other in cell for cell in ids for other in present if other != mark):
            return mark
    named = {".tsv": "\t", ".csv": ","}.get(kind)
    return named if named in splits else next(iter(splits), present[0] if present else None)


def _is_whole(cell: str) -> bool:
    return cell.removeprefix("-").isdecimal()


def _content(text: str) -> Iterator[tuple[int, str]]:
    """Number, from 1, and content of the lines that are not empty or comments."""
    for number, line in enumerate(io.StringIO(text), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith(COMMENTS):
            yield number, stripped


def _cells(line: str, separator: str | None) -> list[str]:
    cells = line.split() if separator is None else next(csv.reader([line], delimiter=separator, skipinitialspace=True))
    return [cell.strip() for cell in cells]


def _columns(cells: Sequence[str]) -> tuple[tuple[int, int], bool]:
    """The columns of the two ids, and whether this first line is a header."""
    lower = [cell.lower() for cell in cells]
    ends = [next((lower.index(name) for name in names if name in lower), None) for names in (SOURCES, TARGETS)]
    if ends[0] is not None and ends[1] is not None:
        return (ends[0], ends[1]), True
    return (0, 1), False


def _integers(text: str, separator: str | None, columns: tuple[int, int], skipped: int) -> NDArray[np.int64] | None:
    """The edges if all ids are whole numbers, by NumPy's parser, which is several times as fast; None otherwise."""
    if not re.search(r"\d", text) or all(number <= skipped for number, _ in _content(text)):
        return None
    try:
        pairs = np.loadtxt(
            io.StringIO(text), np.int64, comments=COMMENTS, delimiter=separator, skiprows=skipped, usecols=columns,
            ndmin=2,
        )  # fmt: skip
    except (ValueError, OverflowError):
        return None
    return pairs if len(pairs) else None


def _edges(path: Path, text: str, separator: str | None, columns: tuple[int, int], skipped: int) -> NDArray[np.str_]:
    """The edges as text.

    Raises:
        UsageError: If a line has no second id.
    """
    pairs = []
    for number, line in _content(text):
        if number <= skipped:
            continue
        cells = _cells(line, separator)
        if len(cells) <= max(columns) or not all(cells[column] for column in columns):
            raise UsageError(f"{path}:{number} is not an edge of two ids: {line[:60]!r}; write two ids in every line.")
        pairs.append([cells[column] for column in columns])
    return np.array(pairs, dtype=str).reshape(-1, 2)
