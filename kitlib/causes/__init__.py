"""Why a run fails, waits or hangs: facts in, causes out. ``run.why()`` shows them."""

from kitlib.causes.cause import Cause as Cause
from kitlib.causes.cause import Diagnosis as Diagnosis
from kitlib.causes.engine import causes as causes
from kitlib.causes.facts import Facts as Facts
