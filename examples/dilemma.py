"""The prisoner's dilemma, played several times: both seats reply without knowing of each other.

windrow collect examples/dilemma.jsonl --env examples.dilemma:Dilemma --model local --max-tokens 12
"""

import re

from windrow import Match, Observation, Step

PAYS = {("C", "C"): (3, 3), ("C", "D"): (0, 5), ("D", "C"): (5, 0), ("D", "D"): (1, 1)}
RULES = (
    "You and another player each choose C (cooperate) or D (defect), {rounds} times. Both C: 3 points each. Both D: 1 "
    "point each. One D, one C: 5 points for D, 0 for C. Reply with one letter, C or D."
)


class Dilemma(Match):
    version = 1
    max_illegal = 1

    @classmethod
    def check_row(cls, row):
        if not isinstance(row.get("rounds"), int) or row["rounds"] < 1:
            raise ValueError("'rounds' must be a number from 1 on")

    async def reset(self, task):
        self.rounds = task["rounds"]
        self.chosen = {}
        self.news = [[{"role": "user", "content": RULES.format(rounds=self.rounds)}] for _ in range(2)]

    def to_act(self):
        """Who has not chosen yet: both, or after an illegal reply the one who is asked again."""
        return [seat for seat in range(2) if seat not in self.chosen] if self.rounds else []

    async def observe(self, seat):
        self.news[seat], news = [], self.news[seat]
        return Observation(news)

    async def act(self, replies):
        steps = {}
        for seat, reply in replies.items():
            choices = re.findall(r"\b[CD]\b", reply.text.upper())
            if choices:
                self.chosen[seat] = choices[0]
            else:
                steps[seat] = (await self.illegal(seat, "Reply with C or D."))[seat]
        if not self.rounds:  # somebody was asked often enough
            return self.nothing() | steps
        if len(self.chosen) < 2:
            return steps
        pays = PAYS[self.chosen[0], self.chosen[1]]
        for seat in range(2):
            mine, theirs = self.chosen[seat], self.chosen[1 - seat]
            steps[seat] = Step(reward=pays[seat] / 5, state={"mine": mine, "theirs": theirs})
            text = f"You chose {mine}, the other {theirs}: {pays[seat]} points. Choose again: C or D."
            self.news[seat] = [{"role": "user", "content": text}]
        self.rounds -= 1
        self.chosen = {}
        return steps

    async def forfeit(self, seat):
        self.rounds = 0
        return self.nothing()

    def nothing(self):
        """Nobody gets more than they have; a reward all the same, so that nobody is left ungraded."""
        return {seat: Step(reward=0.0) for seat in range(2)}


def tit_for_tat(request):
    """A policy to play against: it does what the other one did."""
    last = re.search(r"the other ([CD])", request.messages[-1].text)
    return last[1] if last else "C"
