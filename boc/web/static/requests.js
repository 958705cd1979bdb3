/** Requests of which only the latest is used, with retries while the server is unavailable. */

const LONGEST_WAIT = 15; // seconds between two attempts

export class Requests {
  failures = 0; // number of consecutive failures
  #latest = 0; // number of the latest request
  #running = null;
  #later = 0;
  #retry = 0;

  /** Whether a request is in progress. */
  get busy() {
    return this.#running !== null;
  }

  /** Abort the request in progress, and cancel waiting requests. */
  stop() {
    clearTimeout(this.#later);
    clearTimeout(this.#retry);
    this.#running?.abort();
    this.#running = null;
    this.#latest++;
  }

  /** Run `task` after `delay` milliseconds, unless there is another call before. */
  later(task, delay) {
    this.stop();
    if (delay) this.#later = setTimeout(task, delay);
    else task();
  }

  /** Run `task` after `wait` seconds or, if `wait` is 0, after a delay that doubles with each failure. `now()` runs it at once. */
  retry(task, wait) {
    const seconds = wait || Math.min(LONGEST_WAIT, 2 ** this.failures);
    this.failures++;
    const now = () => {
      clearTimeout(this.#retry);
      task();
    };
    clearTimeout(this.#retry);
    this.#retry = setTimeout(now, 1000 * seconds);
    return { wait: seconds, now };
  }

  /** The result of `send(signal)`, or null if there is a newer request. */
  async send(send) {
    this.stop();
    const number = this.#latest;
    this.#running = new AbortController();
    try {
      const answer = await send(this.#running.signal);
      if (number !== this.#latest) return null;
      this.#running = null;
      return answer;
    } catch (error) {
      if (error.name === "AbortError" || number !== this.#latest) return null;
      this.#running = null;
      throw error;
    }
  }
}
