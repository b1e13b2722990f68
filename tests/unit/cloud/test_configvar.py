"""Config variables of Kubermatic provider specs: their JSON forms, and where values come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from ccm.cloud import errors
from ccm.cloud.configvar import (
    CONFIG_MAP,
    SECRET,
    ConfigVarBool,
    ConfigVarNumber,
    ConfigVarString,
    Reference,
    Resolver,
    decode,
    references,
    to_json,
)

KEY = {"namespace": "kube-system", "name": "acme", "key": "token"}
FROM_SECRET, FROM_MAP = {"secretKeyRef": KEY}, {"configMapKeyRef": {**KEY, "name": "settings"}}
TOKEN = Reference(kind=SECRET, **KEY)


class Disk(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    size_gb: ConfigVarNumber = ConfigVarNumber()


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    token: ConfigVarString = ConfigVarString()
    is_public: ConfigVarBool = ConfigVarBool()
    disk_gb: ConfigVarNumber = ConfigVarNumber()
    networks: tuple[ConfigVarString, ...] | None = None
    disk: Disk = Disk()


def decoded(**given: Any) -> Spec:
    return decode(given, Spec, where="spec")


def stored(**objects: Mapping[str, bytes]) -> Callable[[Reference], Mapping[str, bytes] | None]:
    return lambda reference: objects.get(reference.name)


def resolver(
    *, environ: Mapping[str, str] | None = None, **objects: Mapping[str, bytes]
) -> Resolver:
    return Resolver(stored(**objects), environ or {})


@pytest.mark.row("kubermatic-config-01")
@pytest.mark.parametrize("text", ["value", "spe<ialv&lue", "", "ä"])
@pytest.mark.parametrize("more", [{}, FROM_SECRET, FROM_MAP, FROM_SECRET | FROM_MAP])
def test_string_survives_decoding_and_encoding(text: str, more: dict[str, Any]) -> None:
    spec = decoded(token={**more, "value": text})

    again = msgspec.json.decode(msgspec.json.encode(to_json(spec)))
    assert decoded(token=again["token"]).token == spec.token
    if not more:
        assert again["token"] == text
        assert decoded(token=text).token == spec.token


@pytest.mark.row("kubermatic-config-02")
@pytest.mark.parametrize(
    ("given", "encoded"),
    [
        (None, b"null"),
        (True, b"true"),
        (FROM_SECRET, msgspec.json.encode(FROM_SECRET)),
        (
            {"value": False, "secretKeyRef": {"key": "token", "name": "acme", "namespace": "ns"}},
            b'{"secretKeyRef":{"namespace":"ns","name":"acme","key":"token"},"value":false}',
        ),
        ({**FROM_MAP, **FROM_SECRET}, msgspec.json.encode(FROM_SECRET | FROM_MAP)),
    ],
)
def test_boolean_is_encoded_with_its_keys_in_order(given: object, encoded: bytes) -> None:
    assert msgspec.json.encode(to_json(decoded(isPublic=given))["isPublic"]) == encoded


@pytest.mark.row("kubermatic-config-03")
@pytest.mark.parametrize(("given", "text"), [(5, "5"), (True, "true"), (None, ""), (1.5, "1.5")])
def test_other_json_values_count_as_their_text(given: object, text: str) -> None:
    """`null` is unset, not the text `null`."""
    assert resolver().get_string_value(decoded(token=given).token) == text


@pytest.mark.row("kubermatic-config-05")
@pytest.mark.parametrize(
    ("field", "given", "message"),
    [
        ("token", [], "token: expected a string, or an object with references"),
        ("token", {"vaule": "x"}, "token: unknown field vaule; known are secretKeyRef"),
        ("token", {"secretKeyRef": {**KEY, "name": ""}}, "token: secretKeyRef.name is missing"),
        ("token", {"configMapKeyRef": {"key": "x"}}, "token: configMapKeyRef.namespace is missing"),
        (
            "token",
            {"secretKeyRef": "acme"},
            "token: secretKeyRef: expected an object with namespace",
        ),
        ("isPublic", "yes", "isPublic: expected true or false, or an object with references"),
        ("diskGb", "ten", "diskGb: 'ten' is not a whole number"),
        ("networks", ["a", {"secretKeyRef": {"key": "x"}}], "networks: secretKeyRef.namespace"),
    ],
)
def test_invalid_value_names_the_field(field: str, given: object, message: str) -> None:
    with pytest.raises(errors.InvalidArgument) as raised:
        decoded(**{field: given})

    assert f"spec.{message}" in str(raised.value)


@pytest.mark.row("kubermatic-config-09")
def test_reference_may_have_the_other_keys_of_an_object_reference() -> None:
    reference = {**KEY, "kind": "Secret", "uid": "u-1", "resourceVersion": "7"}

    assert decoded(token={"secretKeyRef": reference}).token == ConfigVarString(secret=TOKEN)


@pytest.mark.row("kubermatic-config-04")
def test_first_source_that_is_set_counts() -> None:
    both = decoded(token=FROM_SECRET | FROM_MAP | {"value": "inline"}).token
    only_map = decoded(token=FROM_MAP | {"value": "inline"}).token
    found = resolver(acme={"token": b" secret\n"}, settings={"token": b"map"})

    assert found.get_string_value(both) == " secret\n"
    assert found.get_string_value(only_map) == "map"
    assert found.get_string_value(decoded(token={"secretKeyRef": {}, "value": "x"}).token) == "x"


@pytest.mark.row("kubermatic-config-06")
@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({}, "token: Secret kube-system/acme does not exist; create it with the key token"),
        ({"acme": {"other": b""}}, "token: Secret kube-system/acme lacks the key token; add it"),
        ({"acme": {"token": b"\xff"}}, "key token of Secret kube-system/acme is not UTF-8 text"),
    ],
)
def test_missing_value_is_an_error(objects: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidArgument) as raised:
        resolver(**objects).get_string_value(decoded(token=FROM_SECRET).token)

    assert str(raised.value) == message


@pytest.mark.row("kubermatic-config-06")
@pytest.mark.parametrize("field", ["networks", "disk.sizeGb"])
def test_missing_value_of_an_inner_field_is_named(field: str) -> None:
    spec = decoded(networks=["a", FROM_MAP], disk={"sizeGb": FROM_MAP})
    var = spec.networks[1] if field == "networks" and spec.networks else spec.disk.size_gb

    with pytest.raises(errors.InvalidArgument, match=f"^{field}: ConfigMap kube-system/settings "):
        resolver().get_string_value(var)


@pytest.mark.row("kubermatic-config-11")
@pytest.mark.parametrize("given", [None, "", {"value": ""}, {"secretKeyRef": {}}])
def test_environment_replaces_an_absent_or_empty_value(given: object) -> None:
    found = resolver(environ={"ACME_TOKEN": "from env"})

    assert found.get_string_value_or_env(decoded(token=given).token, "ACME_TOKEN") == "from env"
    assert found.get_string_value_or_env(decoded(token=given).token, "OTHER") == ""
    assert found.get_credential({"token": given}, "token", "ACME_TOKEN") == b"from env"


@pytest.mark.row("kubermatic-config-06")
@pytest.mark.parametrize("objects", [{}, {"acme": {"other": b"x"}, "settings": {"other": b"x"}}])
@pytest.mark.parametrize("given", [FROM_SECRET, FROM_MAP, FROM_SECRET | {"value": "inline"}])
def test_environment_never_replaces_a_missing_secret(
    given: dict[str, Any], objects: dict[str, Any]
) -> None:
    """The variable may belong to another account, where the machine's VM is not found."""
    found = resolver(environ={"ACME_TOKEN": "other account"}, **objects)
    message = r"^token: (Secret|ConfigMap) kube-system/(acme|settings) .* key token"

    with pytest.raises(errors.InvalidArgument, match=message):
        found.get_string_value_or_env(decoded(token=given).token, "ACME_TOKEN")
    with pytest.raises(errors.InvalidArgument, match=message):
        found.get_credential({"token": given}, "token", "ACME_TOKEN")


@pytest.mark.row("kubermatic-config-06")
def test_environment_never_replaces_an_empty_value_of_a_secret() -> None:
    found = resolver(environ={"ACME_TOKEN": "other account"}, acme={"token": b""})

    assert found.get_string_value_or_env(decoded(token=FROM_SECRET).token, "ACME_TOKEN") == ""


@pytest.mark.row("kubermatic-config-07")
def test_outage_of_the_api_server_never_selects_the_environment() -> None:
    def outage(_: Reference) -> Mapping[str, bytes] | None:
        raise errors.Unavailable("the API server does not answer")

    found = Resolver(outage, {"ACME_TOKEN": "other account"})

    with pytest.raises(errors.Unavailable):
        found.get_string_value_or_env(decoded(token=FROM_SECRET).token, "ACME_TOKEN")


@pytest.mark.row("kubermatic-config-08")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("1", "t", "T", "TRUE", "true", "True")),
        *((text, False) for text in ("0", "f", "F", "FALSE", "false", "False")),
    ],
)
def test_boolean_text_is_parsed_as_go_does(text: str, value: bool) -> None:
    found = resolver(environ={"PUBLIC": text}, acme={"token": text.encode()})

    assert found.get_bool_value(decoded(isPublic=FROM_SECRET).is_public) is value
    assert found.get_bool_value_or_env(decoded().is_public, "PUBLIC") is value


def test_boolean_may_be_unset() -> None:
    unset = decoded(isPublic=None).is_public

    assert resolver().get_bool_value(unset) is None
    assert resolver().get_bool_value_or_env(unset, "PUBLIC") is False
    assert (
        resolver(environ={"PUBLIC": "1"}).get_bool_value_or_env(
            decoded(isPublic=False).is_public, "PUBLIC"
        )
        is False
    )


@pytest.mark.row("kubermatic-config-08")
@pytest.mark.parametrize(("name", "given"), [("isPublic", FROM_SECRET), ("diskGb", FROM_SECRET)])
def test_invalid_text_in_a_secret_is_not_shown(name: str, given: dict[str, Any]) -> None:
    spec, found = decoded(**{name: given}), resolver(acme={"token": b"hunter2"})

    with pytest.raises(errors.InvalidArgument) as raised:
        _ = found.get_bool_value(spec.is_public), found.get_number_value(spec.disk_gb)

    assert "key token of Secret kube-system/acme" in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(ConfigVarString(value="hunter2"))


@pytest.mark.row("kubermatic-config-08")
def test_invalid_boolean_in_the_environment_is_an_error() -> None:
    with pytest.raises(errors.InvalidArgument, match="environment variable PUBLIC is not a bool"):
        resolver(environ={"PUBLIC": "yes"}).get_bool_value_or_env(decoded().is_public, "PUBLIC")


@pytest.mark.row("kubermatic-config-08")
def test_numbers_and_durations() -> None:
    found = resolver(acme={"token": b"2h45m"}, settings={"token": b"0s"})
    from_secret, from_map = decoded(token=FROM_SECRET).token, decoded(token=FROM_MAP).token

    assert found.get_number_value(decoded(diskGb="-7").disk_gb) == -7
    assert found.get_number_value(decoded().disk_gb) is None
    assert found.get_duration_value(from_secret) == timedelta(hours=2, minutes=45)
    assert found.get_duration_value_or_default(from_map, timedelta(1)) == timedelta(1)
    assert found.get_duration_value_or_default(decoded().token, timedelta(1)) == timedelta(1)
    for text in ("soon", ""):
        with pytest.raises(errors.InvalidArgument, match=f"'{text}' is not a duration"):
            found.get_duration_value(decoded(token=text).token)


def test_references_are_found_at_every_depth() -> None:
    spec = {"token": FROM_SECRET, "networks": [FROM_MAP, {"secretKeyRef": {"name": "partial"}}]}

    found = list(references(spec))

    assert found == [TOKEN, Reference(kind=CONFIG_MAP, **{**KEY, "name": "settings"})]
