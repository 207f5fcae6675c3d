"""A join of Parquet, CSV and JSON files by path, its plan, and a page that shows what the eddies did.

python examples/join_of_files.py [FOLDER]
"""

import json
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import millrace

QUERY = """
    SELECT n.name, count(*) AS orders, sum(o.total) AS total
    FROM orders o JOIN customers c ON o.customer = c.id JOIN nations n ON c.nation = n.id
    WHERE o.total > 10
    GROUP BY n.name ORDER BY total DESC
"""
SUFFIXES = {"orders": ".parquet", "customers": ".csv", "nations": ".jsonl"}


def make(folder: Path) -> dict[str, str]:
    """Write three tables and return their paths."""
    rows = range(50_000)
    orders = pa.table({"customer": [n * 7 % 1_000 for n in rows], "total": [n % 97 for n in rows]})
    pq.write_table(orders, folder / "orders.parquet")
    lines = ["id,nation", *(f"{n},{n % 5}" for n in range(1_000))]
    (folder / "customers.csv").write_text("\n".join(lines))
    nations = [
        {"id": n, "name": name} for n, name in enumerate(("Chile", "Ghana", "Nepal", "Norway", "Peru"))
    ]
    (folder / "nations.jsonl").write_text("\n".join(map(json.dumps, nations)))
    return {
        path.stem: str(path) for path in folder.iterdir() if path.suffix in (".parquet", ".csv", ".jsonl")
    }


def main(folder: Path) -> None:
    """Answer the query and write its page."""
    # Small tables would be left to Spark, which is done with them before Python has started.
    query = millrace.query(QUERY, tables=make(folder), options={"take_all": True})
    query.show()
    print(query.explain())
    print("page:", query.report().save(folder / "report.html"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
