"""The two sides of examples/support.yaml by rule, to try it without a model.

    windrow collect --config examples/support.yaml --model scripted:examples.simulator:support \
        --set env.settings.user.policy.model=scripted:examples.simulator:customer
"""

from __future__ import annotations

from windrow import Request


def support(request: Request) -> str:
    asked = sum(message.role == "user" for message in request.messages)
    return "Which order is it?" if asked == 1 else "It is on its way."


def customer(request: Request) -> str:
    """To the one who plays the user, the other side is the user."""
    return "Order 7." if "Which order" in request.messages[-1].text else "Thank you. [END]"
