"""Whether a chat template only copies what messages say: their contents are written as they are, or trimmed,
and nothing else depends on them.

Most templates are of that kind. All that they do then follows from the roles of a prompt, so prompts with the
same roles differ by the contents alone. Whether a template is one is decided by its syntax tree: every
expression gets a kind, and an expression that could look into a content has none.
"""

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, nodes


class Kind(Enum):
    """What a value is, in every prompt whose messages are a role and a text that is not blank."""

    FIXED = "the same for the same roles"
    TEXT = "a content, or trimmed, or fixed"
    BUILT = "contents and fixed text, joined, or fixed"
    MESSAGE = "a message, or fixed"
    MESSAGES = "messages, or fixed"


class UnprovenError(Exception):
    """The template has a part of which it is not known that it only copies contents."""


_MARKUP = {"e", "escape", "forceescape", "safe", "urlize", "xmlattr"}
_NOT_ALIKE_TWICE = {"lipsum", "random"}
_OF_A_TYPE = {
    *("boolean", "callable", "defined", "false", "float", "integer", "iterable", "mapping", "none"),
    *("number", "sequence", "string", "true", "undefined"),
}
_NEIGHBOURS = {"nextitem", "previtem"}
OF_EVERY_DICT = frozenset(dir(dict))
"""Names that a template may mean as a method of a message and not as its key."""
_WRITABLE = {Kind.FIXED, Kind.TEXT, Kind.BUILT}


def is_verbatim(source: str, sandbox: "Environment") -> bool:
    """Whether the template is proven to copy contents, and to be a function of the roles otherwise.

    Args:
        source: the chat template; its variables besides `messages` are taken as fixed.
        sandbox: the environment in which it is compiled.

    Raises:
        jinja2.TemplateSyntaxError: it is no template.
    """
    proof, statements = _Proof(), sandbox.parse(source).body
    try:
        while proof.changed:
            proof.changed = False
            proof.walk(statements)
    except UnprovenError:
        return False
    return True


class _Proof:
    """One walk after the other over the tree, until no name changes its kind any more.

    Names are taken without their scopes: a name is of the kind of all that is ever assigned to it. A fixed
    value where a message or a text is expected is harmless, since fixed values come out alike anyway.
    """

    def __init__(self) -> None:
        self.kinds = {"messages": Kind.MESSAGES}
        self.changed = True
        self._known_fixed: list[nodes.Expr] = []
        self._in_macro = False

    def walk(self, statements: Iterable["nodes.Node"]) -> None:
        for statement in statements:
            method = getattr(self, f"_walk_{type(statement).__name__.lower()}", None)
            if method is None:
                raise UnprovenError
            method(statement)

    def kind(self, expression: "nodes.Node | None") -> Kind:
        """The kind of an expression.

        Raises:
            UnprovenError: it has none.
        """
        if expression is None or expression in self._known_fixed:
            return Kind.FIXED
        method = getattr(self, f"_kind_{type(expression).__name__.lower()}", None)
        if method is not None:
            return method(expression)
        self._require_fixed(*expression.iter_child_nodes())
        if type(expression).__name__ not in _OPERATORS:
            raise UnprovenError
        return Kind.FIXED

    # Statements

    def _walk_output(self, node: Any) -> None:
        for part in node.nodes:
            kind = self.kind(part)
            if kind not in _WRITABLE or (self._in_macro and kind is not Kind.FIXED):
                raise UnprovenError

    def _walk_if(self, node: Any) -> None:
        self.kind(node.test)
        is_text, negated = _is_string_test(node.test)
        self._walk_where_fixed(is_text if negated else None, node.body)
        self._walk_where_fixed(None if negated else is_text, [*node.elif_, *node.else_])

    def _walk_where_fixed(self, expression: Any, statements: list[Any]) -> None:
        """Walk statements that are reached only where `expression` is no text, and so no content."""
        before = self._known_fixed
        if expression is not None and not _assigned(statements) & _names(expression):
            self._known_fixed = [*before, expression]
        self.walk(statements)
        self._known_fixed = before

    def _walk_for(self, node: Any) -> None:
        kind = self.kind(node.iter)
        if node.recursive or kind not in (Kind.FIXED, Kind.MESSAGES):
            raise UnprovenError
        self._assign(node.target, Kind.FIXED if kind is Kind.FIXED else Kind.MESSAGE)
        self.kind(node.test)
        self.walk([*node.body, *node.else_])

    def _walk_assign(self, node: Any) -> None:
        self._assign(node.target, self.kind(node.node))

    def _walk_assignblock(self, node: Any) -> None:
        if node.filter is not None:
            raise UnprovenError
        self.walk(node.body)
        self._assign(node.target, Kind.BUILT)

    def _walk_macro(self, node: Any) -> None:
        self._require_fixed(*node.defaults)
        for target in node.args:
            self._assign(target, Kind.FIXED)
        within, self._in_macro = self._in_macro, True
        self.walk(node.body)
        self._in_macro = within

    def _walk_exprstmt(self, node: Any) -> None:
        self.kind(node.node)

    def _walk_break(self, node: Any) -> None: ...

    _walk_continue = _walk_break

    def _assign(self, target: Any, kind: Kind) -> None:
        match type(target).__name__:
            case "Name" if target.name != "loop":
                joined = _join(self.kinds.get(target.name, Kind.FIXED), kind)
                self.changed |= joined is not self.kinds.setdefault(target.name, Kind.FIXED)
                self.kinds[target.name] = joined
            case "Tuple" if kind is Kind.FIXED:
                for item in target.items:
                    self._assign(item, kind)
            case "NSRef" if kind is Kind.FIXED:
                pass
            case _:
                raise UnprovenError

    # Expressions

    def _kind_name(self, node: Any) -> Kind:
        if node.name == "loop" or node.name in _NOT_ALIKE_TWICE:
            raise UnprovenError
        return self.kinds.get(node.name, Kind.FIXED)

    def _kind_getattr(self, node: Any) -> Kind:
        return self._member(node.node, node.attr)

    def _kind_getitem(self, node: Any) -> Kind:
        self._require_fixed(node.arg)
        if type(node.arg).__name__ == "Const" and isinstance(node.arg.value, str):
            return self._member(node.node, node.arg.value)
        match self.kind(node.node):
            case Kind.MESSAGES:
                return Kind.MESSAGES if type(node.arg).__name__ == "Slice" else Kind.MESSAGE
            case Kind.FIXED:
                return Kind.FIXED
        raise UnprovenError

    def _member(self, owner: Any, name: str) -> Kind:
        if type(owner).__name__ == "Name" and owner.name == "loop":
            return Kind.MESSAGE if name in _NEIGHBOURS else Kind.FIXED
        match self.kind(owner):
            case Kind.FIXED:
                return Kind.FIXED
            case Kind.MESSAGE if name not in OF_EVERY_DICT:
                return Kind.TEXT if name == "content" else Kind.FIXED
        raise UnprovenError

    def _kind_filter(self, node: Any) -> Kind:
        if node.name in _MARKUP | _NOT_ALIKE_TWICE or node.node is None or node.dyn_args or node.dyn_kwargs:
            raise UnprovenError
        self._require_fixed(*node.args, *node.kwargs)
        kind = self.kind(node.node)
        match kind, node.name:
            case Kind.FIXED, _:
                return Kind.FIXED
            case Kind.TEXT, "trim" if not node.args and not node.kwargs:
                return Kind.TEXT
            case ((Kind.TEXT | Kind.BUILT | Kind.MESSAGES), "default" | "d"):
                return kind
            case Kind.MESSAGES, "length" | "count":
                return Kind.FIXED
            case Kind.MESSAGES, "first" | "last":
                return Kind.MESSAGE
            case Kind.MESSAGES, "list":
                return Kind.MESSAGES
        raise UnprovenError

    def _kind_test(self, node: Any) -> Kind:
        if node.kwargs or node.dyn_args or node.dyn_kwargs:
            raise UnprovenError
        if self.kind(node.node) is not Kind.FIXED and (node.args or node.name not in _OF_A_TYPE):
            raise UnprovenError
        self._require_fixed(*node.args)
        return Kind.FIXED

    def _kind_compare(self, node: Any) -> Kind:
        kind = self.kind(node.expr)
        for operand in node.ops:
            other = self.kind(operand.expr)
            if (
                (kind, other) == (Kind.FIXED, Kind.FIXED)
                or (operand.op in ("in", "notin") and (kind, other) == (Kind.FIXED, Kind.MESSAGE))
                or (operand.op in ("eq", "ne") and kind in _WRITABLE and _is_no_text(operand.expr))
            ):
                kind = other
            else:
                raise UnprovenError
        return Kind.FIXED

    def _kind_and(self, node: Any) -> Kind:
        return _join(self.kind(node.left), self.kind(node.right))

    _kind_or = _kind_and

    def _kind_not(self, node: Any) -> Kind:
        self.kind(node.node)
        return Kind.FIXED

    def _kind_condexpr(self, node: Any) -> Kind:
        self.kind(node.test)
        return _join(self.kind(node.expr1), self.kind(node.expr2))

    def _kind_add(self, node: Any) -> Kind:
        return _joined_text(self.kind(node.left), self.kind(node.right))

    def _kind_concat(self, node: Any) -> Kind:
        return _joined_text(*map(self.kind, node.nodes))

    def _kind_call(self, node: Any) -> Kind:
        if node.dyn_args or node.dyn_kwargs:
            raise UnprovenError
        arguments = [*node.args, *(pair.value for pair in node.kwargs)]
        callee = node.node
        if type(callee).__name__ == "Getattr" and self.kind(callee.node) is Kind.TEXT:
            if callee.attr == "strip" and not arguments:
                return Kind.TEXT
            raise UnprovenError
        if type(callee).__name__ == "Name" and callee.name == "raise_exception":
            for argument in arguments:
                self.kind(argument)
            return Kind.FIXED
        self._require_fixed(callee, *arguments)
        return Kind.FIXED

    def _require_fixed(self, *expressions: Any) -> None:
        if any(self.kind(expression) is not Kind.FIXED for expression in expressions):
            raise UnprovenError


_OPERATORS = {
    *("Const", "TemplateData", "Keyword", "Pair", "Dict", "List", "Tuple", "Slice"),
    *("Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow", "Neg", "Pos"),
}
"""Expressions that are fixed where all that they are made of is."""


def _join(one: Kind, other: Kind) -> Kind:
    """The kind of a value that is of one kind or the other."""
    kinds = {one, other} - {Kind.FIXED}
    if kinds == {Kind.TEXT, Kind.BUILT}:
        return Kind.BUILT
    if len(kinds) > 1:
        raise UnprovenError
    return kinds.pop() if kinds else Kind.FIXED


def _joined_text(*kinds: Kind) -> Kind:
    """The kind of what is added together."""
    if not _WRITABLE.issuperset(kinds):
        raise UnprovenError
    return Kind.FIXED if set(kinds) == {Kind.FIXED} else Kind.BUILT


def _is_no_text(node: Any) -> bool:
    return type(node).__name__ == "Const" and not isinstance(node.value, str)


def _is_string_test(test: Any) -> tuple[Any, bool]:
    """What a test `x is string` is about, and whether it is negated; None where it is another test."""
    negated = type(test).__name__ == "Not"
    test = test.node if negated else test
    is_one = type(test).__name__ == "Test" and test.name == "string"
    return (test.node if is_one else None), negated


def _names(expression: Any) -> set[str]:
    from jinja2 import nodes

    return {node.name for node in (expression, *expression.find_all(nodes.Name)) if hasattr(node, "name")}


def _assigned(statements: list[Any]) -> set[str]:
    from jinja2 import nodes

    found = (node for statement in statements for node in (statement, *statement.find_all(nodes.Name)))
    return {node.name for node in found if isinstance(node, nodes.Name) and node.ctx != "load"}
