"""Why one object is as it is: the daemon's own word for it, in a sentence.

`asking` finds the daemon that leads and asks it, `subject` is what is known then, `verdict` decides
from that what the cause is, in the words of `words`, and `report` shows it. Nothing is written
anywhere. What must never enter: questions to the cloud; the daemon has asked them already.
"""
