"""usage: write_table.py ROWS PAGE: puts the results of the conformance suite into the page, between its markers."""

import json
import sys
from pathlib import Path

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def difference(row):
    return f"{row['difference']:.1e}" if row["difference"] else "0"


def notes(row):
    told = [row["why"]] if row["why"] else []
    if row["precise"]:
        told.append("referee in float64")
    if row["random"]:
        told.append("with our random numbers")
    return "; ".join(told)


def table(rows):
    yield "| recipe | family | method | largest difference | |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield f"| {row['name']} | {row['family']} | {row['method']} | {difference(row)} | {notes(row)} |"
    yield ""
    yield f"{len(rows)} recipes; the largest difference of all is {max(r['difference'] for r in rows):.1e}."


def main(rows, page):
    text = Path(page).read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    Path(page).write_text("\n".join([before + BEGIN, *table(json.loads(Path(rows).read_text())), END + after]))


main(*sys.argv[1:])
