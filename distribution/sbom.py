"""A bill of materials (CycloneDX 1.5, JSON): what a package is made of, and what it brings or asks for."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final

Component = dict[str, Any]
_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)==([^;\s]+)(?!.*extra ==)")


def python_component(name: str, version: str, license_: str = "") -> Component:
    normal = re.sub(r"[-_.]+", "-", name).lower()
    purl = f"pkg:pypi/{normal}@{version}"
    made: Component = {"type": "library", "bom-ref": purl, "name": normal, "version": version, "purl": purl}
    return made | ({"licenses": [{"license": {"name": license_}}]} if license_ else {})


def built_in(name: str, version: str, package: str) -> Component:
    """A C library from a Debian package that is linked into the native modules."""
    purl = f"pkg:generic/{name}@{version}"
    where = [{"name": "shardd:built-from", "value": package}, {"name": "shardd:linked", "value": "statically"}]
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "properties": where}


def installed(site: Path, *, without: str) -> list[Component]:
    """All distributions of an environment but `without`."""
    found = [each for each in distributions(path=[str(site)]) if each.metadata["Name"] != without]
    made = [python_component(each.metadata["Name"], each.version, _license(each)) for each in found]
    return sorted(made, key=lambda each: str(each["bom-ref"]))


def required(distribution: Distribution) -> list[Component]:
    """The pinned requirements, without those of extras."""
    found = [_PINNED.match(each) for each in distribution.requires or ()]
    return [python_component(each[1], each[2]) for each in found if each]


def linked(bill: Path) -> list[Component]:
    """The C libraries that an earlier bill names."""
    return [each for each in json.loads(bill.read_text())["components"] if "properties" in each]


def _license(distribution: Distribution) -> str:
    metadata = distribution.metadata
    short = metadata.get("License-Expression") or metadata.get("License") or ""
    classified = [each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier") or () if "License ::" in each]
    return short if short and "\n" not in short else ", ".join(classified)


def write(path: Path, package: Path, version: str, components: Iterable[Component]) -> None:
    """The bill of the file `package`; made of the same things it has the same bytes."""
    parts = list(components)
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    subject = {
        "type": "application",
        "bom-ref": f"shardd@{version}",
        "name": "shardd",
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "properties": [{"name": "shardd:file", "value": package.name}],
    }
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.UUID(hex=digest[:32])}",
        "version": 1,
        "metadata": {"component": subject},
        "components": parts,
        "dependencies": [{"ref": subject["bom-ref"], "dependsOn": [each["bom-ref"] for each in parts]}],
    }
    path.write_text(json.dumps(bill, indent=1) + "\n")
