// A page whose time stands still, and whose chance comes from a seed: put into every document before its own scripts.
// `window[name].run(ms)` lets that much of its time pass, `drawn()` waits for the browser to have drawn it.
((name, seed, epoch) => {
  const real = {Date, frame: window.requestAnimationFrame.bind(window), reportError: window.reportError.bind(window)};
  let now = 0, started = false, order = 0, last = 0;
  const waiting = new Map();
  const MOST = 20000; // callbacks in a run: one that asks for itself at once would never end

  let state = seed;
  Math.random = () => { // Ettinger's mulberry32
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };

  const later = (callback, ms, given, every) => {
    const id = ++last;
    const wait = Math.max(+ms || 0, every ? 1 : 0);
    waiting.set(id, {callback, given, at: now + wait, order: ++order, every: every ? wait : null});
    return id;
  };
  const clear = (id) => { waiting.delete(Number(id)); };
  const called = (callback) => (typeof callback === "function" ? callback : () => (0, eval)(String(callback)));
  window.setTimeout = (callback, ms, ...given) => later(called(callback), ms, given, false);
  window.setInterval = (callback, ms, ...given) => later(called(callback), ms, given, true);
  window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = window.cancelIdleCallback = clear;
  const FRAME = 1000 / 60;
  window.requestAnimationFrame = (callback) => later(() => callback(now), FRAME - (now % FRAME) + 1e-6, [], false);
  window.requestIdleCallback = (callback) => later(() => callback({didTimeout: false, timeRemaining: () => 10}), 1, [], false);
  performance.now = () => now;
  const today = () => epoch + Math.floor(now);
  window.Date = new Proxy(real.Date, {
    construct: (_, given, made) => Reflect.construct(real.Date, given.length ? given : [today()], made === window.Date ? real.Date : made),
    apply: () => new real.Date(today()).toString(),
    get: (_, key) => (key === "now" ? today : real.Date[key]),
  });
  real.Date.prototype.constructor = window.Date;

  AbortSignal.timeout = (ms) => {
    const control = new AbortController();
    later(() => control.abort(new DOMException("signal timed out", "TimeoutError")), ms, [], false);
    return control.signal;
  };
  if (window.scheduler) {
    const post = scheduler.postTask.bind(scheduler);
    scheduler.postTask = (callback, {delay = 0, ...given} = {}) => new Promise((done, failed) => {
      const begin = () => post(callback, given).then(done, failed);
      if (delay > 0) later(begin, delay, [], false);
      else begin();
    });
  }
  const stamps = new WeakMap(); // event -> the page's time when it was first asked for, which is in its first listener
  Object.defineProperty(Event.prototype, "timeStamp", {configurable: true, enumerable: true, get() {
    if (!stamps.has(this)) stamps.set(this, now);
    return stamps.get(this);
  }});

  const still = new CSSStyleSheet();
  still.replaceSync(":root { caret-animation: manual; }"); // a caret blinks in real time
  document.adoptedStyleSheets.push(still);
  let unmoved = true; // Chromium tells some new pages, and others not, that a pointer which nobody moved is at 0, 0
  const moves = (event) => {
    unmoved &&= event.clientX === 0 && event.clientY === 0;
    if (unmoved) event.stopImmediatePropagation();
  };
  for (const kind of ["mouse", "pointer"]) {
    for (const type of ["over", "enter", "move"]) window.addEventListener(kind + type, moves, true);
  }

  window.close = () => {}; // an episode needs its page

  const channel = new MessageChannel();
  const resume = [];
  channel.port1.onmessage = () => resume.shift()();
  const breath = () => new Promise((done) => { resume.push(done); channel.port2.postMessage(0); }); // promises go on meanwhile
  const drawn = () => new Promise((done) => real.frame(() => real.frame(done)));
  const ROUNDS = 5; // of animations that begin where others end
  const moved = new WeakMap(); // endless animation -> the page's time to which it was moved
  const settle = async () => { // animations that end are over at once, endless ones stand where the page's time is
    const going = () => document.getAnimations().filter((a) => a.playState === "running" && a.effect && a.timeline === document.timeline);
    const ends = (a) => Number.isFinite(a.effect.getComputedTiming().endTime);
    for (let round = 0; round < ROUNDS; round++) {
      const ending = going().filter((a) => ends(a) && a.playbackRate);
      if (!ending.length) break;
      for (const a of ending) a.finish();
      await drawn(); // their events come with the next frame
    }
    for (const a of going().filter((a) => !ends(a))) {
      a.playbackRate = 0; // and not pause(), which would take `animation-play-state` from the page
      a.currentTime = moved.has(a) ? a.currentTime + now - moved.get(a) : 0;
    }
    for (const a of document.getAnimations()) moved.set(a, now);
    for (const svg of document.querySelectorAll("svg")) {
      if (svg.ownerSVGElement || !svg.querySelector("animate, animateTransform, animateMotion, set")) continue;
      svg.pauseAnimations();
      svg.setCurrentTime(now / 1000);
    }
  };
  const run = async (ms) => {
    await settle();
    const end = now + ms;
    for (let count = 0; count < MOST; count++) {
      let next = null;
      for (const [id, one] of waiting) {
        if (one.at <= end && (!next || one.at < next.at || (one.at === next.at && one.order < next.order))) next = {id, ...one};
      }
      if (!next) break;
      now = Math.max(now, next.at);
      if (next.every === null) waiting.delete(next.id);
      else Object.assign(waiting.get(next.id), {at: now + next.every, order: ++order});
      try { next.callback(...next.given); } catch (error) { real.reportError(error); }
      await breath();
    }
    now = end;
    await breath();
    await settle();
  };
  Object.defineProperty(window, name, {value: Object.freeze({run, drawn}), enumerable: false});
})
