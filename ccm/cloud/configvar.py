"""Values of a Kubermatic provider spec that may be in a Secret or a ConfigMap.

In the spec, such a value is a plain string, number or boolean, or an object with `secretKeyRef`,
`configMapKeyRef` and `value`. A provider declares its spec with the types of this module and reads
the values through a `Resolver`:

```python
class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    token: ConfigVarString = ConfigVarString()
    assign_public_ipv4: ConfigVarBool = ConfigVarBool()

token = resolver.get_string_value_or_env(spec.token, "ACME_TOKEN")
```
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from ccm.base.parsing import parse_bool, parse_duration
from ccm.cloud.errors import InvalidArgument
from ccm.cloud.machines import convert_spec

S = TypeVar("S", bound=msgspec.Struct)

SECRET, CONFIG_MAP = "Secret", "ConfigMap"

Lookup = Callable[["Reference"], Mapping[str, bytes] | None]
"""Returns the data of the object that a reference names; None = the object does not exist. Raises
CloudError if that cannot be determined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Reference to a key of a Secret or a ConfigMap.

    Attributes:
        kind: `Secret` or `ConfigMap`.
        namespace: namespace of the object.
        name: name of the object.
        key: key in its data.
    """

    kind: str
    namespace: str
    name: str
    key: str

    def __str__(self) -> str:
        return f"key {self.key} of {self.kind} {self.namespace}/{self.name}"


class ConfigVar:
    """Value in a Secret, in a ConfigMap or in the spec itself; the first that is set counts.

    Attributes:
        secret: reference to a Secret; counts first.
        config_map: reference to a ConfigMap; counts second.
        value: value in the spec itself, as text; counts last. None = unset.
        field: path of the field in the spec, for messages; empty = unknown.
        expected: description of the valid values, for messages.
    """

    # No dataclass: msgspec would decode its fields, instead of the forms that `decode` accepts.
    __slots__ = ("config_map", "field", "secret", "value")

    expected: ClassVar[str] = ""

    def __init__(
        self,
        *,
        value: str | None = None,
        secret: Reference | None = None,
        config_map: Reference | None = None,
    ) -> None:
        self.value, self.secret, self.config_map = value, secret, config_map
        self.field = ""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.encode() == other.encode()

    def __hash__(self) -> int:
        return hash((self.secret, self.config_map, self.value))

    def __repr__(self) -> str:
        # The value may be a credential.
        parts = [str(part) for part in (self.secret, self.config_map) if part is not None]
        return f"{type(self).__name__}({', '.join(parts) or ('...' if self.value else '')})"

    @property
    def reference(self) -> Reference | None:
        """The reference that counts; None if there is none."""
        return self.secret or self.config_map

    @classmethod
    def decode(cls, given: object) -> Self:
        """Return the config variable for a decoded JSON value.

        Raises:
            ValueError: the value has another type, or a reference is incomplete.
        """
        if not isinstance(given, Mapping):
            return cls(value=cls._inline(given))
        if unknown := given.keys() - {_SECRET_REF, _CONFIG_MAP_REF, _VALUE}:
            known = f"{_SECRET_REF}, {_CONFIG_MAP_REF}, {_VALUE}"
            raise ValueError(f"unknown field {min(unknown)}; known are {known}")
        return cls(
            secret=_reference(SECRET, _SECRET_REF, given.get(_SECRET_REF)),
            config_map=_reference(CONFIG_MAP, _CONFIG_MAP_REF, given.get(_CONFIG_MAP_REF)),
            value=cls._inline(given.get(_VALUE)),
        )

    def encode(self) -> object:
        """Return the JSON value: the plain value if there is no reference."""
        plain = self._plain()
        if self.reference is None:
            return plain
        references = {_SECRET_REF: self.secret, _CONFIG_MAP_REF: self.config_map}
        fields: dict[str, object] = {
            name: {"namespace": ref.namespace, "name": ref.name, "key": ref.key}
            for name, ref in references.items()
            if ref is not None
        }
        return fields if plain in ("", None) else fields | {_VALUE: plain}

    @classmethod
    def _inline(cls, given: object) -> str | None:
        """Return an inline value as text; a number or boolean counts as its text in JSON."""
        if given is None or isinstance(given, str):
            return given
        if isinstance(given, bool | int | float):
            return msgspec.json.encode(given).decode()
        raise ValueError(f"expected {cls.expected}, or an object with references")

    def _plain(self) -> object:
        return self.value or ""


_SECRET_REF, _CONFIG_MAP_REF, _VALUE = "secretKeyRef", "configMapKeyRef", "value"


def _reference(kind: str, field: str, given: object) -> Reference | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ValueError(f"{field}: expected an object with namespace, name and key")
    # Other keys belong to Kubernetes' ObjectReference, and are ignored as by Kubermatic.
    parts = {name: given.get(name) or "" for name in ("namespace", "name", "key")}
    if not any(parts.values()):
        return None
    for name, part in parts.items():
        if not isinstance(part, str) or not part:
            # Kubermatic ignores such a reference, so that a typing error selects another source.
            raise ValueError(f"{field}.{name} is missing; set namespace, name and key")
    return Reference(kind=kind, **parts)


class ConfigVarString(ConfigVar):
    """A string; a number or boolean in the spec counts as its text."""

    expected = "a string"


class ConfigVarNumber(ConfigVar):
    """A whole number."""

    expected = "a whole number"

    def _plain(self) -> object:
        return int(self.value) if self.value else None

    @classmethod
    def _inline(cls, given: object) -> str | None:
        text = super()._inline(given)
        if text:
            _number(text)
        return text


class ConfigVarBool(ConfigVar):
    """A boolean that may be unset."""

    expected = "true or false"

    def _plain(self) -> object:
        return None if self.value is None else self.value == "true"

    @classmethod
    def _inline(cls, given: object) -> str | None:
        if given is None or isinstance(given, bool):
            return super()._inline(given)
        raise ValueError(f"expected {cls.expected}, or an object with references")


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


class Resolver:
    """Reads the values of config variables.

    Args:
        lookup: returns the data of Secrets and ConfigMaps.
        environ: environment variables of the daemon.

    Attributes:
        used_variables: name -> value of the environment variables that were returned so far.
    """

    def __init__(self, lookup: Lookup, environ: Mapping[str, str]) -> None:
        self.used_variables: dict[str, str] = {}
        self._lookup = lookup
        self._environ = environ

    def get_string_value(self, var: ConfigVar) -> str:
        """Return the value; empty if none is set.

        Raises:
            InvalidArgument: the referenced object or key does not exist.
            CloudError: the API server did not answer.
        """
        reference = var.reference
        if reference is None:
            return var.value or ""
        data = self._lookup(reference)
        place = f"{reference.kind} {reference.namespace}/{reference.name}"
        where, key = f"{var.field}: {place}" if var.field else place, reference.key
        if data is None:
            raise InvalidArgument(f"{where} does not exist; create it with the key {key}")
        if key not in data:
            raise InvalidArgument(f"{where} lacks the key {key}; add it")
        try:
            return data[key].decode()
        except UnicodeDecodeError:
            raise InvalidArgument(f"{reference} is not UTF-8 text") from None

    def get_string_value_or_env(self, var: ConfigVar, env: str) -> str:
        """Return the value; if the spec has none, the variable `env`, or an empty string.

        The variable never replaces the value of a reference, not even an empty one: it may belong
        to another account, in which VMs would be created and those of the machines not be found.

        Raises:
            CloudError: as `get_string_value`.
        """
        if var.reference is not None:
            return self.get_string_value(var)
        return var.value or self._variable(env)

    def get_texts(self, spec: msgspec.Struct, *, without: Collection[str] = ()) -> dict[str, str]:
        """Return the strings that a spec sets, by the JSON name of their field.

        Args:
            spec: the spec.
            without: names of fields to leave out, such as credentials.

        Raises:
            CloudError: as `get_string_value`.
        """
        texts = {
            field.encode_name: self.get_string_value(getattr(spec, field.name))
            for field in msgspec.structs.fields(spec)
            if field.encode_name not in without
            and isinstance(getattr(spec, field.name), ConfigVarString)
        }
        return {name: text for name, text in texts.items() if text}

    def get_credential(self, spec: Mapping[str, Any], name: str, env: str) -> bytes:
        """Return a credential from an undecoded spec, whose other fields may be invalid.

        Args:
            spec: the spec.
            name: name of the field in JSON.
            env: environment variable that counts if the spec has no value and no reference.

        Raises:
            InvalidArgument: the field is invalid, or its value does not exist.
            CloudError: the API server did not answer.
        """
        try:
            var = ConfigVarString.decode(spec.get(name))
        except ValueError as error:
            raise InvalidArgument(f"{name}: {error}") from None
        var.field = name
        return self.get_string_value_or_env(var, env).encode()

    def get_number_value(self, var: ConfigVarNumber) -> int | None:
        """Return the value; None if none is set. Raises as `get_string_value`."""
        text = self.get_string_value(var)
        try:
            return _number(text) if text else None
        except ValueError as error:
            raise _wrong(var, error, "a whole number") from None

    def get_bool_value(self, var: ConfigVarBool) -> bool | None:
        """Return the value; None if none is set. Raises as `get_string_value`.

        Text is parsed as Go does: `true`, `True`, `TRUE`, `t`, `T`, `1`, and their opposites.
        """
        if var.reference is None and var.value is None:
            return None
        text = self.get_string_value(var)
        return _bool(text, str(var.reference or repr(text)))

    def get_bool_value_or_env(self, var: ConfigVarBool, env: str) -> bool:
        """Return the value; if none is set, the environment variable `env`, or False."""
        value = self.get_bool_value(var)
        if value is not None:
            return value
        text = self._variable(env)
        return _bool(text, f"environment variable {env}") if text else False

    def get_duration_value(self, var: ConfigVarString) -> timedelta:
        """Return the value, a Go duration such as `1h30m`. Raises as `get_string_value`."""
        text = self.get_string_value(var)
        try:
            return parse_duration(text)
        except ValueError as error:
            raise _wrong(var, error, "a duration; write it like 5m or 1h30m") from None

    def get_duration_value_or_default(self, var: ConfigVarString, default: timedelta) -> timedelta:
        """Return the value; `default` if none is set or it is not positive."""
        if not self.get_string_value(var):
            return default
        value = self.get_duration_value(var)
        return value if value > timedelta(0) else default

    def _variable(self, name: str) -> str:
        if text := self._environ.get(name, ""):
            self.used_variables[name] = text
        return text


def _bool(text: str, where: str) -> bool:
    value = parse_bool(text)
    if value is None:
        raise InvalidArgument(f"{where} is not a boolean; set true or false")
    return value


def _wrong(var: ConfigVar, error: ValueError, what: str) -> InvalidArgument:
    # What a Secret contains may be a credential under a wrong key: never show it.
    return InvalidArgument(f"{var.reference} is not {what}" if var.reference else str(error))


def references(given: object) -> Iterator[Reference]:
    """Yield the references in a spec that is not decoded, at every depth.

    An incomplete reference is omitted; decoding the spec reports it.
    """
    if isinstance(given, list):
        for item in given:
            yield from references(item)
    if not isinstance(given, Mapping):
        return
    for name, kind in ((_SECRET_REF, SECRET), (_CONFIG_MAP_REF, CONFIG_MAP)):
        try:
            reference = _reference(kind, name, given.get(name))
        except ValueError:
            continue
        if reference is not None:
            yield reference
    for value in given.values():
        yield from references(value)


def decode(given: Mapping[str, Any], declared: type[S], *, where: str, strict: bool = True) -> S:
    """Decode a spec whose fields may be config variables; null counts as unset.

    Args:
        given: the spec.
        declared: a Struct that declares the fields.
        where: path of the spec, for messages.
        strict: whether an invalid field is an error. Otherwise it counts as unset.

    Raises:
        InvalidArgument: a field is unknown or has a wrong value; the message names every such
            field.
    """
    values, problems = convert_spec(given, declared, dec_hook=_decode)
    if problems and strict:
        raise InvalidArgument("; ".join(f"{where}.{problem}" for problem in problems))
    valid = {name: given[name] for name in values}
    spec = msgspec.convert(valid, declared, dec_hook=_decode)
    _name_fields(spec, "")
    return spec


def _name_fields(value: object, path: str) -> None:
    """Store the path of each config variable in a spec."""
    if isinstance(value, ConfigVar):
        value.field = path
    elif isinstance(value, tuple | list):
        for item in value:
            _name_fields(item, path)
    elif isinstance(value, msgspec.Struct):
        # Unlike `msgspec.structs.fields`, these attributes cost no evaluation of annotations.
        for field, name in zip(
            value.__struct_fields__, value.__struct_encode_fields__, strict=True
        ):
            _name_fields(getattr(value, field), f"{path}.{name}" if path else name)


def _decode(kind: type, given: object) -> object:
    if issubclass(kind, ConfigVar):
        return kind.decode(given)
    raise NotImplementedError


def to_json(spec: msgspec.Struct) -> dict[str, Any]:
    """Return a spec as the JSON object that `decode` reads."""
    return dict(msgspec.to_builtins(spec, enc_hook=_encode))


def _encode(value: Any) -> object:
    if isinstance(value, ConfigVar):
        return value.encode()
    raise NotImplementedError
