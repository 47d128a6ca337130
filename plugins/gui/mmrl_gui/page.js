// What clicks do on a page. What is cut off at an edge has no role, so that it is in no list of what can be clicked, until it is scrolled to.
const $=s=>document.querySelector(s),all=(s,r)=>[...(r||document).querySelectorAll(s)];
function flip(e,a){e.setAttribute(a,e.getAttribute(a)=='true'?'false':'true')}
function only(e,a,g){all('['+a+']',g).forEach(o=>o.setAttribute(a,'false'));e.setAttribute(a,'true')}
addEventListener('click',()=>setTimeout(whole));
function toast(t){all('.toast').forEach(o=>o.remove());const d=document.createElement('div');d.className='toast';d.textContent=t;document.body.append(d)}
function part(e){
 const r=e.getBoundingClientRect();let w=r.width,h=r.height;
 for(let p=e.parentElement;p;p=p.parentElement)if(p==document.body||getComputedStyle(p).overflow!='visible'){
  const q=p.getBoundingClientRect();w=Math.min(w,Math.min(r.right,q.right)-Math.max(r.left,q.left));h=Math.min(h,Math.min(r.bottom,q.bottom)-Math.max(r.top,q.top))}
 const t=e.matches('.cut')?e:e.querySelector('.cut'),seen=t&&t.scrollWidth?t.clientWidth/t.scrollWidth:1;
 return w>r.width-1&&h>r.height-1&&seen>.75}
function whole(){all('[data-thing]').forEach(e=>{
 if(e.dataset.role==null)e.dataset.role=e.getAttribute('role')||'';
 const seen=part(e);e.style.cursor=seen?'':'default';
 if(!seen)e.setAttribute('role','none');else if(e.dataset.role)e.setAttribute('role',e.dataset.role);else e.removeAttribute('role')})}
addEventListener('scroll',whole,true);whole();
document.addEventListener('submit',e=>e.preventDefault());
document.addEventListener('click',e=>{
 const t=e.target.closest('[data-thing]');
 if(!e.target.closest('.menu,[data-opens]'))all('.menu').forEach(m=>m.hidden=true);
 all('.toast').forEach(o=>o.remove());
 if(!t)return;
 const d=t.dataset,r=d.role;
 if(t.tagName=='A')e.preventDefault();
 if(r=='switch'||r=='checkbox')return flip(t,'aria-checked');
 if(r=='radio')return only(t,'aria-checked',t.closest('[role=radiogroup]'));
 if(r=='slider'){const b=t.getBoundingClientRect();t.style.setProperty('--at',Math.round(100*(e.clientX-b.left)/b.width)+'%');return}
 if(t.matches('input,textarea'))return;
 if(t.hasAttribute('aria-pressed'))return d.one?only(t,'aria-pressed',t.parentNode):flip(t,'aria-pressed');
 if(r=='tab'||d.page!=null){
  const g=t.closest('[role=tablist],nav');
  if(r=='tab')only(t,'aria-selected',g);else{all('[aria-current]',g).forEach(o=>o.removeAttribute('aria-current'));t.setAttribute('aria-current','page')}
  const h=$('[data-heading]');if(h&&r!='tab')h.textContent=t.innerText;
  if(d.shows)all('[data-panel]').forEach(p=>p.hidden=p.dataset.panel!=d.shows);
  all('.menu').forEach(m=>m.hidden=true);return}
 if(d.opens)return void($(d.opens).hidden=!$(d.opens).hidden);
 if(d.sets){$(d.sets).firstElementChild.textContent=t.innerText;t.closest('.menu').hidden=true;return}
 if(d.closes!=null){t.closest('.veil,.menu,.closable').hidden=true;return}
 if(d.removes!=null){t.closest('.row,.card,.post').remove();return}
 if(d.says){const f=$(d.says);if(f.value){const b=document.createElement('div');b.className='bub me';b.textContent=f.value;$('.talk').append(b);f.value=''}return}
 if(d.adds){const c=$(d.adds);c.textContent=Math.max(0,+c.textContent+(+(d.by||1)));return}
 if(t.closest('.menu'))t.closest('.menu').hidden=true;
 toast(t.innerText||t.getAttribute('aria-label'));
});
