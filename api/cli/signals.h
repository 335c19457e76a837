// Ctrl-C and SIGTERM as a flag that the work looks at between its steps.
#pragma once

namespace pagezip {

/// From now on the first SIGINT or SIGTERM only sets a flag; the second ends the process at once.
/// A closed pipe becomes an error of the write.
void install_signal_handlers();

/// The signal that came, or 0.
int interrupting_signal();

}  // namespace pagezip
