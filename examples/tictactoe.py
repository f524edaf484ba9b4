"""Tic-tac-toe, two seats, one after the other.

    windrow collect examples/tictactoe.jsonl --env examples.tictactoe:TicTacToe --model local --max-tokens 12

Seat 0 plays X and begins. A row may set up the board. An illegal move is told, and the seat is asked again, as often as
`max_illegal` says; then it has lost.
"""

import re

from windrow import Match, Observation, Step

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
RULES = (
    "You play tic-tac-toe as {mark}. The cells are numbered from 1 to 9, row by row. Reply with the number of the free "
    "cell that you take, and nothing else."
)


class TicTacToe(Match):
    version = 1
    max_illegal = 2

    @classmethod
    def check_settings(cls, settings):
        if unknown := settings.keys() - {"max_illegal"}:
            raise ValueError(f"there is no setting {min(unknown)!r}; there is 'max_illegal'")

    @classmethod
    def check_row(cls, row):
        if not re.fullmatch("[XO.]{9}", row.get("board", "." * 9)):
            raise ValueError("'board' must be nine of X, O and . (free)")

    async def reset(self, task):
        self.board = list(task.get("board", "." * 9))
        self.turn = 0
        self.over = False
        self.greeted = set()

    def to_act(self):
        return [] if self.over else [self.turn]

    async def observe(self, seat):
        messages = []
        if seat not in self.greeted:
            self.greeted.add(seat)
            messages.append({"role": "system", "content": RULES.format(mark="XO"[seat])})
        messages.append({"role": "user", "content": f"{self.shown()}\nYour move:"})
        return Observation(messages)

    async def act(self, replies):
        [(seat, reply)] = replies.items()
        found = re.search("[1-9]", reply.text)
        if found is None or self.board[int(found[0]) - 1] != ".":
            free = ", ".join(str(cell + 1) for cell in range(9) if self.board[cell] == ".")
            return await self.illegal(seat, f"That is not a free cell. Free are: {free}.")
        self.board[int(found[0]) - 1] = "XO"[seat]
        self.turn = 1 - seat
        if any(all(self.board[cell] == "XO"[seat] for cell in line) for line in LINES):
            return self.ended({seat: 1.0, 1 - seat: 0.0})
        if "." not in self.board:
            return self.ended({0: 0.5, 1: 0.5})
        return {seat: Step(state={"board": "".join(self.board)})}

    async def forfeit(self, seat):
        return self.ended({seat: 0.0, 1 - seat: 1.0})

    def ended(self, rewards):
        self.over = True
        state = {"board": "".join(self.board)}
        return {seat: Step(reward=reward, state=state) for seat, reward in rewards.items()}

    def shown(self):
        cells = [mark if mark != "." else str(n) for n, mark in enumerate(self.board, 1)]
        return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))
