"""Locations, types and images that the fake offers: a subset of those of the real cloud."""

from __future__ import annotations

from typing import Any

CREATED = "2016-01-30T23:50:00+00:00"
"""Creation time of all predefined resources."""

_PLACES = (
    ("fsn1", "DE", "Falkenstein", "eu-central"),
    ("nbg1", "DE", "Nuremberg", "eu-central"),
    ("hel1", "FI", "Helsinki", "eu-central"),
    ("ash", "US", "Ashburn, VA", "us-east"),
    ("hil", "US", "Hillsboro, OR", "us-west"),
    ("sin", "SG", "Singapore", "ap-southeast"),
)

LOCATIONS: list[dict[str, Any]] = [
    {
        "id": number,
        "name": name,
        "description": f"{city} DC Park 1",
        "country": country,
        "city": city,
        "latitude": 50.0,
        "longitude": 10.0,
        "network_zone": zone,
    }
    for number, (name, country, city, zone) in enumerate(_PLACES, 1)
]

_PRICE = {"net": "1.0000000000", "gross": "1.1900000000000000"}
_PRICES: list[dict[str, Any]] = [
    {
        "location": location["name"],
        "price_hourly": _PRICE,
        "price_monthly": _PRICE,
        "included_traffic": 21990232555520,
        "price_per_tb_traffic": _PRICE,
    }
    for location in LOCATIONS
]


def _server_type(number: int, name: str, cores: int, memory: float, architecture: str) -> Any:
    return {
        "id": number,
        "name": name,
        "description": name.upper(),
        "category": "cost_optimized",
        "cores": cores,
        "memory": memory,
        "disk": 40,
        "deprecated": False,
        "deprecation": None,
        "prices": _PRICES,
        "storage_type": "local",
        "cpu_type": "shared",
        "architecture": architecture,
        "locations": [
            {
                "id": location["id"],
                "name": location["name"],
                "deprecation": None,
                "available": True,
                "recommended": True,
            }
            for location in LOCATIONS
        ],
    }


SERVER_TYPES: list[dict[str, Any]] = [
    _server_type(114, "cx23", 2, 4.0, "x86"),
    _server_type(115, "cx33", 4, 8.0, "x86"),
    _server_type(45, "cax11", 2, 4.0, "arm"),
]


def _balancer_type(number: int, name: str, targets: int, services: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": name,
        "description": name.upper(),
        "max_connections": 10000,
        "max_services": services,
        "max_targets": targets,
        "max_assigned_certificates": 10,
        "deprecated": None,
        "deprecation": None,
        "prices": _PRICES,
    }


BALANCER_TYPES: list[dict[str, Any]] = [
    _balancer_type(1, "lb11", 25, 5),
    _balancer_type(2, "lb21", 75, 15),
    _balancer_type(3, "lb31", 150, 30),
]


def _image(number: int, name: str, flavor: str, version: str, architecture: str) -> dict[str, Any]:
    return {
        "id": number,
        "type": "system",
        "status": "available",
        "name": name,
        "description": f"{flavor} {version}",
        "image_size": None,
        "disk_size": 5,
        "created": CREATED,
        "created_from": None,
        "bound_to": None,
        "os_flavor": flavor,
        "os_version": version,
        "rapid_deploy": True,
        "protection": {"delete": False},
        "deprecated": None,
        "deleted": None,
        "labels": {},
        "architecture": architecture,
    }


IMAGES: list[dict[str, Any]] = [
    _image(161547269, "ubuntu-24.04", "ubuntu", "24.04", "x86"),
    _image(161547270, "ubuntu-24.04", "ubuntu", "24.04", "arm"),
    _image(161547271, "rocky-9", "rocky", "9", "x86"),
    _image(67794396, "ubuntu-22.04", "ubuntu", "22.04", "x86") | {"deprecated": CREATED},
]


def find(things: list[dict[str, Any]], word: str) -> dict[str, Any] | None:
    """Return the resource whose name or ID is `word`; None if there is none."""
    return next((thing for thing in things if word in (thing["name"], str(thing["id"]))), None)
