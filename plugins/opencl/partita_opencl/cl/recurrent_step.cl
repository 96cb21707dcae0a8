// The new state from the sums of an element's gates. To be included where it is computed, behind
// recurrent_gates.cl: own[g] is what the input gives to a gate, TOTAL(g) what the state does, CELL what
// an LSTM keeps, PEEP(n) its peepholes, BEFORE the state, and RESULT what it becomes.

#if defined(LSTM)
float enter = own[0] + TOTAL(0), leave = own[1] + TOTAL(1);
float keep = own[2] + TOTAL(2), fresh = own[3] + TOTAL(3);
#ifdef PEEPHOLES
enter += PEEP(0) * CELL;
keep += PEEP(2) * CELL;
#endif
enter = FUNCTION(0, CLIPPED(enter));
#ifdef INPUT_FORGET
keep = 1.0f - enter;
#else
keep = FUNCTION(0, CLIPPED(keep));
#endif
fresh = FUNCTION(1, CLIPPED(fresh));
CELL = keep * CELL + enter * fresh;
#ifdef PEEPHOLES
leave += PEEP(1) * CELL;
#endif
RESULT = FUNCTION(0, CLIPPED(leave)) * FUNCTION(2, CELL);
#elif defined(GRU)
const float update = FUNCTION(0, CLIPPED(own[0] + TOTAL(0)));
const float reset = FUNCTION(0, CLIPPED(own[1] + TOTAL(1)));
const float fresh = FUNCTION(1, CLIPPED(own[2] + reset * TOTAL(2)));
RESULT = (1.0f - update) * fresh + update * BEFORE;
#else
RESULT = FUNCTION(0, CLIPPED(own[0] + TOTAL(0)));
#endif
