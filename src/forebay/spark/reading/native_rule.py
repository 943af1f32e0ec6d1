"""A rule of Spark's optimizer that puts unions in the place of scans (forebay.spark.reading.native).

Rules may be added to a session by `spark.experimental.extraOptimizations`; they come after those that push filters and
columns into scans. A rule must be a subclass of an abstract class, which no proxy of ours can be: ours is compiled by
Janino, as other classes in forebay.spark.reading.native are, and stays on the driver. It looks at the leaves of a plan,
and calls back to Python only for scans that say that they are unions.
"""

from __future__ import annotations

import logging

from forebay.spark.jvm.gateway import CATALYST, JavaObject, Jvm

logger = logging.getLogger(__name__)

_RULE = "ForebayUnions"


def unite_scans(jvm: Jvm, session: JavaObject) -> None:
    """Give `session` the rule, unless it has it. A Spark that takes no rules reads the same rows more slowly."""
    try:
        methods = session.experimental()
        rules = methods.extraOptimizations()
        known = [rules.apply(index) for index in range(rules.size())]
        if all(str(rule.getClass().getName()) != _RULE for rule in known):
            made = jvm.compiled(_RULE)()
            getattr(methods, "extraOptimizations_$eq")(jvm.sequence([*known, made]))
    except Exception as e:  # noqa: BLE001 - whatever it is, scans are V1 scans then
        logger.warning("lake files beside Python tasks are read more slowly: %s", jvm.unknown_layout("optimizer", e))


def with_output(jvm: Jvm, plan: JavaObject, output: JavaObject) -> JavaObject:
    """The logical plan `plan`, which needs no optimizer any more, with the attributes `output` in the place of its own.

    A union has the attributes of its first part. Renamed there, they cost nothing; above the union they would copy
    every row.
    """
    if str(plan.getClass().getSimpleName()) == "Union":
        parts = plan.children()
        first, *others = [parts.apply(index) for index in range(parts.size())]
        return plan.withNewChildren(jvm.sequence([_renamed(jvm, first, output), *others]))
    return _renamed(jvm, plan, output)


def _renamed(jvm: Jvm, plan: JavaObject, output: JavaObject) -> JavaObject:
    alias, none, found = jvm.class_(CATALYST + "expressions.Alias"), jvm.sequence([]), plan.output()
    names = []
    for index in range(output.size()):
        wanted = output.apply(index)
        names.append(alias(found.apply(index), wanted.name(), wanted.exprId(), none, jvm.none(), none))
    return jvm.class_(CATALYST + "plans.logical.Project")(jvm.sequence(names), plan)
